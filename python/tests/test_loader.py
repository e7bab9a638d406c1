"""The loader: exactly the plan's order on any number of ranks, and resumed anywhere."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import ROWS, Cluster

import forebay

BATCH = 48
SETTINGS: dict[str, Any] = {"global_batch": BATCH, "seed": 3, "shuffle": 2, "columns": ["id", "x"]}


def ids(batches: Iterable[forebay.Batch]) -> list[int]:
    """Samples of batches, padding left out."""
    found: list[int] = []
    for batch in batches:
        numbers = pa.array(batch.sample_ids)
        real = pa.array([True] * len(numbers)) if batch.mask is None else pa.array(batch.mask)
        found += numbers.filter(real).to_pylist()
    return found


class Reading(threading.Thread):
    """A thread that reads an iteration to its end: what it got, and what it raised."""

    def __init__(self, batches: Iterator[Any]) -> None:
        super().__init__(daemon=True)
        self.batches, self.got = batches, list[Any]()
        self.raised: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            # Not `extend`: `got` is looked at meanwhile.
            for batch in self.batches:
                self.got.append(batch)
        except BaseException as e:
            self.raised = e


class Hold:
    """Within a loader's `next`, at one step, in the thread that reads: stands still until it may go on."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, batch: forebay.Batch) -> forebay.Batch:
        if batch.step == self.step and not self.begun.is_set():
            self.begun.set()
            assert self.go.wait(30)
        return batch

    def reading(self, loader: forebay.Loader[forebay.Batch], batches: Iterator[Any]) -> Reading:
        """A thread that stands still there."""
        setattr(loader, "_convert", self)
        reading = Reading(batches)
        assert self.begun.wait(10)
        return reading


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("ending", ["drop", "pad", "exact"])
def test_order_and_digests_are_those_of_the_command(cluster: Cluster, table: pa.Table, world: int, ending: Any) -> None:
    flags = ["--batch", str(BATCH), "--seed", "3", "--window", "2", "--world", str(world), "--ending", ending]
    all_ids: list[int] = []
    for rank in range(world):
        said = cluster.forebay("epoch", cluster.uri(), *flags, "--rank", str(rank), "--epochs", "2")["epochs"]
        loader = forebay.Loader(cluster.dataset(), rank=rank, world=world, ending=ending, **SETTINGS)
        assert len(loader) == said[0]["steps"]
        for epoch in range(2):
            assert loader.epoch == epoch
            batches = list(loader)
            assert [batch.step for batch in batches] == list(range(len(loader)))
            assert loader.digest == said[epoch]["order_digest"]
            for batch in batches:
                expected = table.select(["id", "x"]).take(pa.array(batch.sample_ids))
                assert pa.Table.from_batches([pa.record_batch(batch)]).equals(expected.combine_chunks())
            if epoch == 0:
                all_ids += ids(batches)
        loader.close()
    assert len(set(all_ids)) == len(all_ids) == (ROWS // BATCH * BATCH if ending == "drop" else ROWS)


def test_steps_are_those_of_the_plan(cluster: Cluster) -> None:
    loader = forebay.Loader(cluster.dataset(), rank=1, world=2, **SETTINGS)
    loader.set_epoch(5)
    flags = ["--batch", str(BATCH), "--seed", "3", "--window", "2", "--world", "2", "--rank", "1", "--epoch", "5"]
    for step, batch in zip(range(2), loader, strict=False):
        slots = cluster.forebay("plan", cluster.uri(), *flags, "--step", str(step))["slots"]
        assert ids([batch]) == [slot["row"] for slot in slots]
    assert loader.epoch == 5


@pytest.mark.parametrize("way", ["dataset", "direct"])
def test_a_dataset_s_plan_is_the_loader_s(cluster: Cluster, way: str) -> None:
    ds: forebay.Dataset = getattr(cluster, way)()
    settings: dict[str, Any] = {"batch_size": 44, "seed": 7, "shuffle": "full", "ending": "pad", "rank": 1, "world": 3}
    plan, of_loader = ds.plan(2, **settings), forebay.Loader(ds, **settings).plan(2)
    assert list(plan) == list(of_loader) and plan.mask(-1) == of_loader.mask(-1) and plan.epoch == 2
    assert repr(plan) == repr(of_loader) and plan._repr_html_() == of_loader._repr_html_()
    assert list(ds.plan(batch_size=48)) == list(ds.plan(0, global_batch=48, rank=0, world=1))
    with pytest.raises(forebay.InvalidError, match="pass one of batch_size"):
        ds.plan(3)


@pytest.mark.parametrize("before", [1, 2, 4])
def test_resumed_at_every_step_on_another_number_of_ranks(cluster: Cluster, before: int) -> None:
    whole = {rank: ids(forebay.Loader(cluster.dataset(), rank=rank, world=before, **SETTINGS)) for rank in range(before)}
    order = set().union(*map(set, whole.values()))
    loaders = [forebay.Loader(cluster.dataset(), rank=rank, world=before, **SETTINGS) for rank in range(before)]
    epochs = [iter(loader) for loader in loaders]
    seen: set[int] = set()
    steps = len(loaders[0])
    for step in range(1, steps + 1):
        seen |= {sample for epoch in epochs for sample in ids([next(epoch)])}
        states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
        assert all(state == states[0] for state in states)
        after = {1: 4, 2: 1, 4: 2}[before]
        resumed = [forebay.Loader(cluster.dataset(), rank=rank, world=after, **{**SETTINGS, "seed": 0}) for rank in range(after)]
        rest: list[int] = []
        for loader in resumed:
            loader.load_state_dict(states[0])
            assert loader.seed == 3 and len(loader) == steps
            if step == steps:
                assert (loader.epoch, loader.steps_left) == (1, steps)
                break
            assert (loader.epoch, loader.steps_left) == (0, steps - step)
            loader.set_epoch(0)  # The epoch that was resumed: nothing begins again.
            rest += ids(loader)
            assert loader.epoch == 1
            loader.close()
        if step < steps:
            assert len(rest) == len(set(rest)) and not seen & set(rest) and seen | set(rest) == order
    for loader in loaders:
        loader.close()


def test_a_resumed_run_goes_on_as_it_would_have(cluster: Cluster) -> None:
    straight = forebay.Loader(cluster.dataset(), **SETTINGS)
    batches = [ids([batch]) for _ in range(2) for batch in straight]
    first = forebay.Loader(cluster.dataset(), **SETTINGS)
    done = [ids([batch]) for _, batch in zip(range(5), first, strict=False)]
    second = forebay.Loader(cluster.dataset(), **SETTINGS)
    second.load_state_dict(first.state_dict())
    done += [ids([batch]) for _ in range(2) for batch in second]
    assert done == batches
    assert second.state_dict()["epoch"] == 2 and second.state_dict()["samples_done"] == 0


def test_epochs_follow_each_other_or_are_chosen(cluster: Cluster) -> None:
    loader = forebay.Loader(cluster.dataset(), **SETTINGS)
    first, second = ids(loader), ids(loader)
    assert first != second and loader.epoch == 2
    loader.set_epoch(0)
    assert ids(loader) == first
    loader.set_epoch(1)  # It comes next anyway.
    assert ids(loader) == second
    # Left early: the next iteration is the next epoch, unless the state says otherwise.
    loader.set_epoch(0)
    for _ in loader:
        break
    state = loader.state_dict()
    assert ids(loader) == second
    loader.load_state_dict(state)
    assert ids(loader) == first[BATCH:] and loader.epoch == 1
    # Stopped at the last batch, before the end was noticed.
    loader.set_epoch(0)
    steps = iter(loader)
    assert [next(steps) for _ in range(len(loader))][-1].epoch == 0
    assert ids(loader) == second
    ended = forebay.Loader(cluster.dataset(), epochs=1, **SETTINGS)
    assert ids(ended) == first
    with pytest.raises(forebay.InvalidError, match="all 1 epochs"):
        iter(ended)


def test_nothing_is_read_ahead_beyond_the_last_epoch(cluster: Cluster) -> None:
    """Also where the run stood beyond it meanwhile."""
    loader = forebay.Loader(cluster.dataset(), epochs=2, **SETTINGS)
    for epoch in [7, 1]:
        loader.set_epoch(epoch)
    reader = loader._settings.read(loader.data._core)
    for _ in range(len(loader)):
        assert reader.next() is not None
    assert reader.next() is None and reader.ended is not None and reader.ended[0] == 1
    assert reader.next() is None, "a batch of an epoch that the run does not have"


def test_directly_is_the_same_order(cluster: Cluster) -> None:
    through = forebay.Loader(cluster.dataset(), **SETTINGS)
    directly = forebay.Loader(cluster.direct(), **SETTINGS)
    assert ids(through) == ids(directly) and through.digest == directly.digest


def test_file_order_and_full_shuffles(cluster: Cluster) -> None:
    settings: dict[str, Any] = {"batch_size": 100, "ending": "exact"}
    assert ids(forebay.Loader(cluster.dataset(), shuffle=None, **settings)) == list(range(ROWS))
    full = ids(forebay.Loader(cluster.dataset(), shuffle="full", **settings))
    assert sorted(full) == list(range(ROWS)) and full != list(range(ROWS))


def test_padding_is_marked(cluster: Cluster) -> None:
    last = list(forebay.Loader(cluster.dataset(), ending="pad", **SETTINGS))[-1]
    assert last.mask is not None and (len(last), last.real_rows) == (BATCH, ROWS % BATCH)
    assert pa.array(last.mask).to_pylist().count(True) == last.real_rows


def test_a_uri_will_do(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_ENDPOINT", cluster.endpoint)
    with forebay.Loader(cluster.uri(), batch_size=200, columns=["x", "id"]) as loader:
        batch = next(iter(loader))
        assert batch.keys() == ["x", "id"] and len(loader) == 3
        assert "epoch 0, 2 of 3 steps" in repr(loader) and "ending drop" in repr(loader)
    mix = {cluster.uri(): 0.5, cluster.uri("other"): 0.5}
    with forebay.Loader(mix, batch_size=20, columns=["id"]) as loader:
        assert loader.data.num_rows == ROWS + 100 and next(iter(loader)).keys() == ["id"]
    wrong: Any = 7
    with pytest.raises(TypeError, match="a dataset is named by a URI, a path or a mix .*, not by 7"):
        forebay.Loader(wrong, batch_size=1)


def test_bad_input(cluster: Cluster) -> None:
    ds = cluster.dataset()
    with pytest.raises(forebay.InvalidError, match="one of batch_size"):
        forebay.Loader(ds)
    with pytest.raises(forebay.InvalidError, match="one of batch_size"):
        forebay.Loader(ds, batch_size=1, global_batch=1)
    with pytest.raises(forebay.InvalidError, match="use 99 or 102"):
        forebay.Loader(ds, global_batch=100, rank=0, world=3)
    with pytest.raises(forebay.InvalidError, match="rank 3 of 2"):
        forebay.Loader(ds, batch_size=1, rank=3, world=2)
    with pytest.raises(forebay.InvalidError, match="go together"):
        forebay.Loader(ds, batch_size=1, rank=3)
    with pytest.raises(forebay.InvalidError, match="fewer than the global batch"):
        forebay.Loader(ds, batch_size=1000)
    with pytest.raises(forebay.InvalidError, match="shuffle"):
        forebay.Loader(ds, batch_size=1, shuffle="wild")  # type: ignore[call-overload]
    with pytest.raises(forebay.InvalidError, match="ending"):
        forebay.Loader(ds, batch_size=1, ending="x")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("batch_size", -1, 1),
        ("batch_size", 0, 1),
        ("global_batch", -8, 1),
        ("seed", -1, 0),
        ("epochs", -1, 0),
        ("prefetch_bytes", -1, 0),
        ("rank", -1, 0),
        ("world", -1, 1),
    ],
)
def test_numbers_that_are_too_small_are_named(cluster: Cluster, name: str, value: int, limit: int) -> None:
    settings: dict[str, Any] = {"rank": 0, "world": 1, name: value}
    if name != "global_batch":
        settings = {"batch_size": 10, **settings}
    with pytest.raises(forebay.InvalidError, match=f"^{name}={value}: it must be at least {limit}$"):
        forebay.Loader(cluster.dataset(), **settings)


def test_keywords_of_a_data_loader_are_answered(cluster: Cluster) -> None:
    ds = cluster.dataset()
    told = {
        "num_workers": "leave it out: rows arrive decoded",
        "drop_last": "pass ending='drop', or 'exact'",
        "collate_fn": "pass transform=",
    }
    for name, advice in told.items():
        unknown: dict[str, Any] = {"batch_size": 1, name: 1}
        with pytest.raises(TypeError, match=rf"^Loader\(\) takes no {name}=: {advice}"):
            forebay.Loader(ds, **unknown)
    unknown = {"batch_size": 1, "batches": 1}
    with pytest.raises(TypeError, match=r"^Loader\(\) takes no batches=$"):
        forebay.Loader(ds, **unknown)


def test_numbers_elsewhere_are_named_too(cluster: Cluster) -> None:
    ds = cluster.dataset()
    loader = forebay.Loader(ds, **SETTINGS)
    refused: list[Callable[[int], object]] = [loader.set_epoch, loader.plan]
    for take in refused:
        with pytest.raises(forebay.InvalidError, match="^epoch=-1: it must be at least 0$"):
            take(-1)
    with pytest.raises(forebay.InvalidError, match=r"^seed=\d+: it must be less than 2\*\*64$"):
        forebay.Loader(ds, batch_size=1, seed=1 << 64)
    with pytest.raises(forebay.InvalidError, match="^rows=-1"):
        ds.head(-1)
    with pytest.raises(forebay.InvalidError, match="^limit=-1"):
        ds.scan(-1)
    for name in ["segment_bytes", "direct_memory_bytes"]:
        wrong: dict[str, Any] = {name: -1}
        with pytest.raises(forebay.InvalidError, match=f"^{name}=-1"):
            forebay.dataset(cluster.uri(), direct=True, **wrong)
    for name, value in {"seed": None, "epochs": 2.0, "rank": "0"}.items():
        wrong = {"batch_size": 1, "rank": 0, "world": 1, name: value}
        with pytest.raises(TypeError, match=f"^{name}={value!r}: it must be a whole number$"):
            forebay.Loader(ds, **wrong)
    assert ids(loader), "it reads as before"


def test_states_that_are_not_of_this_run(cluster: Cluster) -> None:
    loader = forebay.Loader(cluster.dataset(), **SETTINGS)
    state = loader.state_dict()
    other = forebay.Loader(cluster.dataset("other"), **SETTINGS)
    with pytest.raises(forebay.ChangedError, match="version"):
        other.load_state_dict(state)
    damaged = state["state"].replace(state["state"][20], "0" if state["state"][20] != "0" else "1")
    with pytest.raises(forebay.CorruptError):
        loader.load_state_dict({**state, "state": damaged})
    with pytest.raises(forebay.CorruptError, match="no state"):
        loader.load_state_dict({"x": 1})  # type: ignore[typeddict-item, typeddict-unknown-key]
    with pytest.raises(forebay.InvalidError, match="form 2"):
        loader.load_state_dict({**state, "forebay": 2})
    with pytest.raises(forebay.InvalidError, match="reads form 1: resume with the version of forebay that saved it or a later one"):
        loader.load_state_dict({"forebay": 2, "what": "a later version knows"})  # type: ignore[typeddict-item, typeddict-unknown-key]
    with pytest.raises(forebay.CorruptError, match="resume from another checkpoint"):
        loader.load_state_dict({**state, "state": "no digits"})
    assert ids(loader), "it reads as before"


def test_a_loader_is_iterated_once_at_a_time(cluster: Cluster) -> None:
    loader = forebay.Loader(cluster.dataset(), **SETTINGS)
    first = iter(loader)
    next(first)
    second = iter(loader)
    with pytest.raises(forebay.ClosedError, match="another iteration"):
        next(first)
    next(second)
    loader.close()
    with pytest.raises(forebay.ClosedError, match="closed"):
        next(second)
    with pytest.raises(forebay.ClosedError, match="closed"):
        iter(loader)
    loader.close()


STEPS = ROWS // BATCH


@pytest.mark.parametrize("step", [0, 5, STEPS - 1])
def test_a_second_thread_is_refused_and_the_first_goes_on(cluster: Cluster, step: int) -> None:
    plain = forebay.Loader(cluster.dataset(), **SETTINGS)
    expected = ids(plain)
    loader, hold = forebay.Loader(cluster.dataset(), **SETTINGS), Hold(step)
    batches = iter(loader)
    reading = hold.reading(loader, batches)
    state = loader.state_dict()
    for _ in range(3):
        with pytest.raises(forebay.InvalidError, match="another thread is reading from this loader: let one thread"):
            next(batches)
    assert loader.state_dict() == state and loader.steps_left == STEPS - step
    hold.go.set()
    reading.join(30)
    assert reading.raised is None and ids(reading.got) == expected and loader.digest == plain.digest
    assert (loader.epoch, loader.steps_left) == (1, STEPS) and next(batches, None) is None
    assert ids(loader) == ids(plain), "the next epoch begins at its beginning"


@pytest.mark.parametrize("step", [3, STEPS - 1])
@pytest.mark.parametrize("way", ["close", "set_epoch", "load_state_dict"])
def test_another_thread_ends_an_iteration(cluster: Cluster, way: str, step: int) -> None:
    """The batch that came meanwhile is dropped, and the run stands where the other thread has put it."""
    plain = forebay.Loader(cluster.dataset(), **SETTINGS)
    plain.set_epoch(4)
    state = plain.state_dict()
    loader, hold = forebay.Loader(cluster.dataset(), **SETTINGS), Hold(step)
    calls: dict[str, Any] = {"close": (), "set_epoch": (4,), "load_state_dict": (state,)}
    reading = hold.reading(loader, iter(loader))
    getattr(loader, way)(*calls[way])
    hold.go.set()
    reading.join(30)
    told = "this loader is closed" if way == "close" else "another iteration over this loader began"
    assert isinstance(reading.raised, forebay.ClosedError) and told in str(reading.raised)
    assert len(reading.got) == step
    if way != "close":
        assert loader.state_dict() == state and ids(loader) == ids(plain) and loader.digest == plain.digest


@pytest.mark.parametrize("step", [0, 3])
def test_an_iteration_that_another_thread_begins_has_all_its_batches(cluster: Cluster, step: int) -> None:
    """Those too that the first one was waiting for."""
    plain = forebay.Loader(cluster.dataset(), **SETTINGS)
    first, second = ids(plain), ids(plain)
    loader, hold = forebay.Loader(cluster.dataset(), **SETTINGS), Hold(step)
    reading = hold.reading(loader, iter(loader))
    batches = iter(loader)
    hold.go.set()
    reading.join(30)
    assert isinstance(reading.raised, forebay.ClosedError) and len(reading.got) == step
    # An epoch of which there were batches is over.
    assert ids(batches) == (second if step else first)


class BeginsInBetween:
    """In place of a stream's lock: right before it is taken, another thread begins an iteration, as far as it can."""

    def __init__(self, loader: forebay.Loader[forebay.Batch], lock: threading.Lock) -> None:
        self.loader, self.lock = loader, lock
        self.begun: list[Iterator[forebay.Batch]] = []
        self.other = threading.Thread(target=lambda: self.begun.append(iter(self.loader)))

    def acquire(self, blocking: bool) -> bool:
        if self.other.ident is None:
            self.other.start()
        self.other.join(0.3)
        return self.lock.acquire(blocking)

    def release(self) -> None:
        self.lock.release()

    def locked(self) -> bool:
        return self.lock.locked()


def test_an_iteration_that_begins_while_a_batch_is_asked_for_has_all_its_batches(cluster: Cluster) -> None:
    plain = forebay.Loader(cluster.dataset(), **SETTINGS)
    epochs = [ids(plain), ids(plain)]
    loader: Any = forebay.Loader(cluster.dataset(), **SETTINGS)
    batches = iter(loader)
    between = BeginsInBetween(loader, loader._stream.taking)
    loader._stream.taking = between
    try:
        next(batches)
    except forebay.ClosedError:
        pass
    between.other.join(30)
    assert ids(between.begun[0]) in epochs


def test_close_ends_a_wait_for_rows(data: Path) -> None:
    own = Cluster(data, 1)
    try:
        ds = own.dataset("wide")
        loader = forebay.Loader(ds, batch_size=20, prefetch_bytes=1 << 20, patience_s=20)
        batches = iter(loader)
        next(batches)
        own.kill(0)
        reading = Reading(batches)
        time.sleep(2)
        assert reading.is_alive(), "it waits for the node to come back"
        began = time.monotonic()
        loader.close()
        reading.join(30)
        assert isinstance(reading.raised, forebay.ClosedError) and "this loader is closed" in str(reading.raised)
        assert time.monotonic() - began < 2
    finally:
        own.stop()


def test_figures_of_what_was_read(cluster: Cluster) -> None:
    loader = forebay.Loader(cluster.dataset(), ending="pad", **SETTINGS)
    assert loader.stats() == {"batches": 0, "rows": 0, "wait_s": 0.0, "ahead": 0}
    waited = []
    for _ in range(2):
        for batch in loader:
            waited.append(loader.stats()["wait_s"])
    told = loader.stats()
    assert (told["batches"], told["rows"], told["ahead"]) == (2 * len(loader), 2 * ROWS, 0), "padding does not count"
    assert 0 < waited[0] and waited == sorted(waited) and told["wait_s"] == waited[-1]
    loader.close()
    assert loader.stats() == told


def test_several_loaders_at_once(cluster: Cluster) -> None:
    ds = cluster.dataset()
    one, two = forebay.Loader(ds, **SETTINGS), forebay.Loader(ds, **SETTINGS)
    assert [ids([a]) == ids([b]) for a, b in zip(one, two, strict=True)] == [True] * len(one)


def test_attributes_that_frameworks_probe_are_absent(cluster: Cluster) -> None:
    loader = forebay.Loader(cluster.dataset(), **SETTINGS)
    for name in ["dataset", "sampler", "batch_sampler", "worker_init_fn"]:
        assert not hasattr(loader, name)
