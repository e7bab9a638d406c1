"""torch's DataLoader, torchdata and samplers over Forebay: the values and the order of a plain loader."""

from __future__ import annotations

import pickle
import types
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from conftest import ROWS, Cluster, needs

import forebay

torch = needs("torch")

import torchdata.nodes
from torch.utils.data import DataLoader, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import forebay.torch
import forebay.torchdata

SETTINGS: dict[str, Any] = {"seed": 3, "shuffle": 2, "columns": ["id", "x"]}
SPAWNED: dict[str, Any] = {"batch_size": None, "multiprocessing_context": "forkserver"}


def numbers(batch: Any) -> tuple[int, list[int], list[float], list[int]]:
    return batch.step, batch["id"].tolist(), batch["x"].tolist(), batch.sample_ids.tolist()


def expected(cluster: Cluster, epoch: int, **settings: Any) -> list[Any]:
    loader = forebay.torch.Loader(cluster.dataset(), **{**SETTINGS, **settings})
    loader.set_epoch(epoch)
    return [numbers(batch) for batch in loader]


def refuses(loader: Any, error: type[Exception], told: str) -> None:
    """Its iteration raises, and its workers are ended here. What has raised lies in a cycle: the collector would end the
    queues first, and torch would then wait five seconds for each worker, that nobody can tell to go."""
    batches: Any = None
    with pytest.raises(error, match=told):
        batches = iter(loader)
        list(batches)
    if hasattr(batches, "_shutdown_workers"):
        batches._shutdown_workers()


def iterable(cluster: Cluster, **settings: Any) -> forebay.torch.IterableDataset:
    return forebay.torch.IterableDataset(cluster.dataset(), **{**SETTINGS, **settings})


def test_without_workers_a_data_loader_gives_the_loader_s_batches(cluster: Cluster) -> None:
    data = iterable(cluster, batch_size=50)
    loader = DataLoader(data, batch_size=None)
    assert len(loader) == 12
    for epoch in range(2):
        assert data.epoch == epoch
        assert [numbers(batch) for batch in loader] == expected(cluster, epoch, batch_size=50)


# 600 rows are 12 steps of 48 and an incomplete one.
@pytest.mark.parametrize(("workers", "world", "ending"), [(3, 2, "exact"), (2, 1, "pad")])
def test_workers_share_the_steps_exactly(cluster: Cluster, workers: int, world: int, ending: str) -> None:
    for rank in range(world):
        settings = {"global_batch": 48, "rank": rank, "world": world, "ending": ending}
        data = iterable(cluster, **settings)
        loader = DataLoader(data, num_workers=workers, **SPAWNED)
        data.set_epoch(1)
        assert [numbers(batch) for batch in loader] == expected(cluster, 1, **settings)


def test_workers_refuse_to_repeat_an_epoch(cluster: Cluster) -> None:
    loader = DataLoader(iterable(cluster, batch_size=100), num_workers=2, **SPAWNED)
    assert [numbers(batch) for batch in loader] == expected(cluster, 0, batch_size=100)
    refuses(loader, forebay.InvalidError, "call set_epoch")


def test_persistent_workers_go_on(cluster: Cluster) -> None:
    loader = DataLoader(iterable(cluster, batch_size=50), num_workers=2, persistent_workers=True, **SPAWNED)
    for epoch in range(2):
        assert [numbers(batch) for batch in loader] == expected(cluster, epoch, batch_size=50)


def test_the_last_epoch_is_the_last_with_workers_too(cluster: Cluster) -> None:
    """Workers that go on by themselves, and some that are told to read an epoch too many."""
    data = iterable(cluster, batch_size=100, epochs=2)
    persistent = DataLoader(data, num_workers=2, persistent_workers=True, **SPAWNED)
    for epoch in range(2):
        assert [numbers(batch) for batch in persistent] == expected(cluster, epoch, batch_size=100)
    told = DataLoader(data, num_workers=1, **SPAWNED)
    data.set_epoch(2)
    here = DataLoader(data, batch_size=None)
    for loader in [persistent, told, here]:
        refuses(loader, forebay.InvalidError, "all 2 epochs of this run are over")


def test_persistent_workers_that_had_nothing_left_to_read_go_on(cluster: Cluster) -> None:
    """Of an epoch's last two steps two of four workers get none."""
    plain = forebay.torch.Loader(cluster.dataset(), batch_size=50, **SETTINGS)
    for _ in zip(range(10), plain, strict=False):
        pass
    data = iterable(cluster, batch_size=50)
    data.load_state_dict({"began": plain.state_dict(), "batches": 0, "workers": 1})
    loader = DataLoader(data, num_workers=4, persistent_workers=True, **SPAWNED)
    assert [numbers(batch) for batch in loader] == expected(cluster, 0, batch_size=50)[10:]
    for epoch in [1, 2]:
        assert [numbers(batch) for batch in loader] == expected(cluster, epoch, batch_size=50)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_state_with_less_than_a_larger_step_left_goes_on_with_the_next_epoch(cluster: Cluster, workers: int) -> None:
    plain = forebay.torch.Loader(cluster.dataset(), batch_size=50, **SETTINGS)
    for _ in zip(range(11), plain, strict=False):
        pass
    data = iterable(cluster, batch_size=100, ending="drop")
    data.load_state_dict({"began": plain.state_dict(), "batches": 0, "workers": 1})
    assert data.epoch == 1
    context: dict[str, Any] = {"multiprocessing_context": "forkserver"} if workers else {}
    loader: Any = DataLoader(data, batch_size=None, num_workers=workers, **context)
    assert [numbers(batch) for batch in loader] == expected(cluster, 1, batch_size=100)


def test_workers_refuse_to_repeat_the_rest_of_an_epoch(cluster: Cluster) -> None:
    plain = forebay.torch.Loader(cluster.dataset(), batch_size=100, **SETTINGS)
    next(iter(plain))
    data = iterable(cluster, batch_size=100)
    data.load_state_dict({"began": plain.state_dict(), "batches": 0, "workers": 1})
    loader = DataLoader(data, num_workers=2, **SPAWNED)
    assert [numbers(batch) for batch in loader] == expected(cluster, 0, batch_size=100)[1:]
    refuses(loader, forebay.InvalidError, "call set_epoch")
    data.set_epoch(1)
    assert [numbers(batch) for batch in loader] == expected(cluster, 1, batch_size=100)


def test_forked_workers_are_refused_with_advice(cluster: Cluster) -> None:
    for data in [iterable(cluster, batch_size=50), forebay.torch.MapDataset(cluster.dataset(columns=["id"]))]:
        batch: dict[str, Any] = {"batch_size": None} if isinstance(data, forebay.torch.IterableDataset) else {}
        loader: Any = DataLoader(data, num_workers=1, multiprocessing_context="fork", **batch)
        refuses(loader, forebay.ClosedError, "forkserver")


def stateful(cluster: Cluster, workers: int, **settings: Any) -> tuple[Any, Any]:
    data = iterable(cluster, **(settings or {"batch_size": 50}))
    context = {"multiprocessing_context": "forkserver"} if workers else {}
    return StatefulDataLoader(data, batch_size=None, num_workers=workers, **context), data


@pytest.mark.parametrize(("workers", "stop"), [(0, 1), (0, 7), (0, 12), (2, 7)])
def test_a_stateful_data_loader_resumes_exactly(cluster: Cluster, workers: int, stop: int) -> None:
    whole = [batch for epoch in range(2) for batch in expected(cluster, epoch, batch_size=50)]
    loader, _ = stateful(cluster, workers)
    done = [numbers(batch) for _, batch in zip(range(stop), loader, strict=False)]
    state = loader.state_dict()
    del loader
    resumed, data = stateful(cluster, workers)
    resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
    done += [numbers(batch) for batch in resumed]
    if stop < 12:
        data.set_epoch(1)
        done += [numbers(batch) for batch in resumed]
    assert done == whole


def stopped_after_seven(cluster: Cluster, workers: int) -> Any:
    loader, _ = stateful(cluster, workers)
    for _ in zip(range(7), loader, strict=False):
        pass
    return loader.state_dict()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_data_loader_resumes_exactly_with_other_batches_or_not_at_all(cluster: Cluster, workers: int) -> None:
    """A worker knows what it has given itself, in steps; without workers the state is the loader's."""
    resumed, _ = stateful(cluster, workers, batch_size=100)
    resumed.load_state_dict(stopped_after_seven(cluster, workers))
    if workers:
        with pytest.raises(forebay.InvalidError, match="with 50 rows in a step of all ranks .* here steps have 100 rows"):
            next(iter(resumed))
    else:
        # Within a batch rows stand by segments.
        order = [row for _, ids, _, _ in expected(cluster, 0, batch_size=50) for row in ids]
        assert [sorted(batch["id"].tolist()) for batch in resumed] == [sorted(order[350:450]), sorted(order[450:550])]


def test_a_state_of_workers_resumes_on_another_number_of_ranks(cluster: Cluster) -> None:
    state = stopped_after_seven(cluster, 2)
    found: list[list[list[int]]] = []
    for rank in range(2):
        resumed, _ = stateful(cluster, 2, batch_size=25, rank=rank, world=2)
        resumed.load_state_dict(state)
        found.append([batch["id"].tolist() for batch in resumed])
    # Within a batch rows stand by segments.
    rest = [sorted(ids) for _, ids, _, _ in expected(cluster, 0, batch_size=50)[7:]]
    assert [sorted(left + right) for left, right in zip(*found, strict=True)] == rest


def test_a_state_from_an_epoch_s_beginning_is_of_that_epoch(cluster: Cluster) -> None:
    """Also of a persistent worker that has not given any batch of it."""
    data = iterable(cluster, batch_size=50)
    loader: Any = StatefulDataLoader(data, num_workers=2, persistent_workers=True, **SPAWNED)
    assert [numbers(batch) for batch in loader] == expected(cluster, 0, batch_size=50)
    first = numbers(next(iter(loader)))
    resumed, _ = stateful(cluster, 2)
    resumed.load_state_dict(loader.state_dict())
    assert [first, *map(numbers, resumed)] == expected(cluster, 1, batch_size=50)


def test_a_worker_s_state_needs_a_worker(cluster: Cluster) -> None:
    data = iterable(cluster, batch_size=50)
    before = data.state_dict()
    for batches, workers, message in [(3, 1, "the state is of a worker process"), (0, 2, "the state is of 2 workers")]:
        with pytest.raises(forebay.InvalidError, match=message):
            data.load_state_dict({**before, "batches": batches, "workers": workers})
        assert data.state_dict() == before


def test_states_of_others_are_refused(cluster: Cluster) -> None:
    data = iterable(cluster, batch_size=50)
    plain: Any = forebay.torch.Loader(cluster.dataset(), batch_size=50, **SETTINGS).state_dict()
    with pytest.raises(forebay.CorruptError, match="no state of a forebay.torch.IterableDataset"):
        data.load_state_dict(plain)


@pytest.mark.parametrize("name", ["transform", "device"])
def test_an_iterable_dataset_makes_nothing_else_of_its_batches(cluster: Cluster, name: str) -> None:
    with pytest.raises(TypeError, match=f"takes no {name}=: use a forebay.torch.Loader"):
        iterable(cluster, **{"batch_size": 50, name: "cpu"})


def test_ranks_that_were_found_too_early_are_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, before workers get their copies, and in a process that got a copy."""
    data, told = iterable(cluster, batch_size=50), iterable(cluster, batch_size=50, rank=0, world=1)
    sampler = forebay.torch.Sampler(cluster.dataset(), batch_size=50, **SETTINGS)
    copy = pickle.loads(pickle.dumps(data))
    for name, answer in {"is_initialized": True, "get_rank": 1, "get_world_size": 2}.items():
        monkeypatch.setattr(torch.distributed, name, lambda *_, answer=answer: answer)
    tries: list[Callable[[], object]] = [
        lambda: iter(data),
        lambda: iter(copy),
        lambda: iter(sampler),
        lambda: pickle.dumps(data),
    ]
    for attempt in tries:
        with pytest.raises(forebay.InvalidError, match="make it after init_process_group"):
            attempt()
    assert next(iter(pickle.loads(pickle.dumps(told)))).step == 0


def test_rows_by_number(cluster: Cluster, table: pa.Table) -> None:
    data = forebay.torch.MapDataset(
        cluster.dataset(), columns=["id", "image", "name", "place", "age", "tags"], nulls={"age": -1}, ragged="pad"
    )
    assert len(data) == ROWS
    for row in [0, 599, 7, -1]:
        sample, truth = data[row], table.slice(row % ROWS, 1).to_pylist()[0]
        assert (int(sample["id"]), sample["image"].tolist(), sample["name"]) == (truth["id"], truth["image"], truth["name"])
        assert int(sample["place"]["east"]) == truth["place"]["east"]
        assert int(sample["age"]) == (-1 if truth["age"] is None else truth["age"])
        assert sample["tags"].tolist() == truth["tags"]
    for wrong in [600, -601]:
        with pytest.raises(IndexError):
            data[wrong]
    with pytest.raises(forebay.InvalidError, match="none"):
        forebay.torch.MapDataset(cluster.dataset(), nulls={"none": 0})
    # Rows of several segments and objects, some twice.
    wanted = [599, 3, 3, 250, 0, 401]
    together = data.collate(data.__getitems__(wanted))
    assert together["id"].tolist() == wanted and together["tags"].shape == (6, 3)
    assert together.sample_ids.tolist() == wanted and together.mask is None
    assert together["tags"].tolist() == [list(range(i % 4)) + [0] * (3 - i % 4) for i in wanted]


class Doubled(forebay.torch.MapDataset):
    """As users make them: with something of their own, and another row."""

    def __init__(self, dataset: forebay.Dataset, factor: int) -> None:
        super().__init__(dataset)
        self.factor = factor

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"id": super().__getitem__(row)["id"] * self.factor}


def test_a_class_made_of_rows_by_number_keeps_what_it_adds(cluster: Cluster) -> None:
    data = pickle.loads(pickle.dumps(Doubled(cluster.dataset(columns=["id", "x"]), 2)))
    assert data.factor == 2 and data[7]["id"] == 14
    for collate in [data.collate, None]:
        loader: Any = DataLoader(data, batch_size=4, sampler=[5, 3, 599, 0], collate_fn=collate)
        assert [batch["id"].tolist() for batch in loader] == [[10, 6, 1198, 0]]


def test_samplers_take_rows_in_processes(cluster: Cluster, table: pa.Table) -> None:
    data = forebay.torch.MapDataset(cluster.dataset(columns=["id", "x"]))
    assert len(pickle.loads(pickle.dumps(data))) == ROWS
    seen: list[int] = []
    for rank in range(2):
        sampler: Any = DistributedSampler(data, num_replicas=2, rank=rank, seed=5)
        for collate in [data.collate, None]:
            options: Any = {"sampler": sampler, "batch_size": 64, "collate_fn": collate}
            if collate is not None:
                options |= {"num_workers": 1, "multiprocessing_context": "spawn"}
            found: list[int] = []
            for batch in DataLoader(data, **options):
                ids = batch["id"].tolist()
                assert batch["x"].tolist() == table.take(ids)["x"].to_pylist()
                found += ids
            assert found == list(sampler)
        seen += found
    assert sorted(seen) == list(range(ROWS))


@pytest.mark.parametrize("world", [1, 2])
def test_a_sampler_has_the_loader_s_order(cluster: Cluster, world: int) -> None:
    for rank in range(world):
        settings: Any = {"global_batch": 48, "rank": rank, "world": world, "ending": "exact"}
        sampler = forebay.torch.Sampler(cluster.dataset(), **{**SETTINGS, **settings})
        loader = DataLoader(forebay.torch.MapDataset(cluster.dataset(columns=["id"])), batch_sampler=sampler)
        for epoch in range(2):
            assert sampler.epoch == epoch and len(loader) == 13
            assert [batch["id"].tolist() for batch in loader] == [ids for _, ids, _, _ in expected(cluster, epoch, **settings)]


def sampled(cluster: Cluster, workers: int) -> Any:
    data = forebay.torch.MapDataset(cluster.dataset(columns=["id"]))
    sampler = forebay.torch.Sampler(cluster.dataset(), **SETTINGS, batch_size=50)
    context: Any = {"multiprocessing_context": "forkserver"} if workers else {}
    return StatefulDataLoader(data, batch_sampler=sampler, collate_fn=data.collate, num_workers=workers, **context)


@pytest.mark.parametrize(("workers", "stop"), [(0, 5), (0, 12), (2, 5)])
def test_a_sampler_s_state_is_exact(cluster: Cluster, workers: int, stop: int) -> None:
    whole = [ids for epoch in range(2) for _, ids, _, _ in expected(cluster, epoch, batch_size=50)]
    loader = sampled(cluster, workers)
    done = [batch["id"].tolist() for _, batch in zip(range(stop), loader, strict=False)]
    resumed = sampled(cluster, workers)
    resumed.load_state_dict(loader.state_dict())
    while len(done) < len(whole):
        before = len(done)
        done += [batch["id"].tolist() for batch in resumed]
        assert len(done) > before, "an empty epoch"
    assert done == whole


def test_a_plan_is_what_the_loader_reads(cluster: Cluster) -> None:
    settings: dict[str, Any] = {**SETTINGS, "global_batch": 48, "ending": "pad"}
    loader = forebay.Loader(cluster.dataset(), **settings)
    plan = loader.plan(2)
    loader.set_epoch(2)
    batches = list(loader)
    assert plan.epoch == 2 and list(plan) == [pa.array(batch.sample_ids).to_pylist() for batch in batches]
    assert plan[-1] == plan[12] and plan[3:5] == [plan[3], plan[4]]
    last = batches[-1].mask
    assert last is not None and plan.mask(-1) == pa.array(last).to_pylist() and plan.mask(0) is None
    with pytest.raises(IndexError):
        plan[13]
    for _ in zip(range(4), loader, strict=False):
        pass
    rest = loader.plan()
    assert rest.epoch == 3 and list(rest) == list(loader.plan(3))[4:]


@pytest.mark.parametrize("through", [lambda node: node, lambda node: torchdata.nodes.Prefetcher(node, prefetch_factor=3)])
@pytest.mark.parametrize("stop", [1, 5, 12])
def test_a_node_of_torchdata(cluster: Cluster, through: Callable[[Any], Any], stop: int) -> None:
    def loader() -> Any:
        data: Any = forebay.torch.Loader(cluster.dataset(), batch_size=50, **SETTINGS)
        return torchdata.nodes.Loader(through(forebay.torchdata.Node(data)))

    whole = [batch for epoch in range(2) for batch in expected(cluster, epoch, batch_size=50)]
    first = loader()
    done = [numbers(batch) for _, batch in zip(range(stop), first, strict=False)]
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    while len(done) < len(whole):
        before = len(done)
        done += [numbers(batch) for batch in resumed]
        assert len(done) > before, "an empty epoch"
    assert done == whole


def test_accelerate_may_not_share_out_again(cluster: Cluster) -> None:
    """What accelerate's loaders do with an iterable dataset and a batch sampler is done in a module of that name."""
    module = types.ModuleType("accelerate.data_loader")
    exec("def read(data): return list(data)", module.__dict__)
    for world in [1, 2]:
        settings: Any = {**SETTINGS, "global_batch": 100, "rank": 0, "world": world}
        for data in [iterable(cluster, **settings), forebay.torch.Sampler(cluster.dataset(), **settings)]:
            if world == 1:
                assert len(module.read(data)) == 6
            else:
                with pytest.raises(forebay.InvalidError, match=r"accelerator.prepare\(\) the model and the optimizer only"):
                    module.read(data)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("batch", "dispatched"), [(None, True), (None, False), (2, False)])
def test_accelerate_s_own_loaders_are_refused(cluster: Cluster, workers: int, batch: int | None, dispatched: bool) -> None:
    accelerate = needs("accelerate")
    accelerate.PartialState(cpu=True)
    data = iterable(cluster, global_batch=100, rank=0, world=2)
    context: dict[str, Any] = {"multiprocessing_context": "forkserver"} if workers else {}
    loader: Any = DataLoader(data, batch_size=batch, num_workers=workers, **context)
    shared_out = accelerate.data_loader.prepare_data_loader(
        loader, num_processes=2, process_index=0, put_on_device=dispatched, dispatch_batches=dispatched
    )
    with pytest.raises(forebay.InvalidError, match=r"accelerator.prepare\(\) the model and the optimizer only"):
        next(iter(shared_out))
    # Where accelerate has no part in it, workers get their copies.
    assert next(iter(DataLoader(data, num_workers=workers, batch_size=None, **context))).step == 0


def test_accelerate_leaves_a_loader_alone(cluster: Cluster) -> None:
    accelerate = needs("accelerate")
    loader: Any = forebay.torch.Loader(cluster.dataset(), batch_size=50, **SETTINGS)
    assert accelerate.Accelerator(cpu=True).prepare(loader) is loader


def test_notebooks_see_tables(cluster: Cluster) -> None:
    ds = cluster.dataset(columns=["id", "x"])
    assert "<td>id</td><td>Int64</td>" in ds._repr_html_() and "600 rows" in ds._repr_html_()
    loader = forebay.torch.Loader(ds, batch_size=50, seed=3)
    assert "forebay.torch.Loader" in loader._repr_html_() and "<td>seed</td><td>3</td>" in loader._repr_html_()
    assert repr(loader).startswith("<forebay.torch.Loader of s3://") and "<forebay.Plan of epoch 0" in repr(loader.plan())
    html = loader.plan()._repr_html_()
    assert "(50)" in html and "7 more steps" in html
    from forebay._html import table

    assert table("<a>", [("<b>", "&")]) == "<table><caption>&lt;a&gt;</caption><tr><td>&lt;b&gt;</td><td>&amp;</td></tr></table>"
