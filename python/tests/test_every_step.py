"""Stopped after each step of an epoch and resumed on another number of ranks, under each framework that keeps a
state of its own: the rows, values and digests of a run that was never stopped. The ranks are run one after the
other, in this process."""

from __future__ import annotations

import gc
import json
import runpy
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from conftest import Cluster, needs

import forebay

needs("torch")

import accelerate
import grain
import lightning.pytorch as pl
import torch
import torchdata.nodes
import transformers
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torchdata.stateful_dataloader import StatefulDataLoader

import forebay.grain
import forebay.hf
import forebay.torch
import forebay.torchdata
import forebay.torchtitan

# 600 rows: six steps, and some that are dropped.
GLOBAL_BATCH, STEPS, EPOCHS = 96, 6, 2
SETTINGS: dict[str, Any] = {"global_batch": GLOBAL_BATCH, "seed": 3, "shuffle": 2}
TOKENS_BATCH, TOKENS = 16, 17
# The order, by docs/order.md alone.
ORDER: Any = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "scripts/order.py")))


@pytest.fixture(autouse=True, scope="module")
def imported_modules_are_no_garbage() -> Iterator[None]:
    """accelerate collects garbage at the end of each run of a Trainer; to look at all of torch takes most of a second."""
    gc.freeze()
    yield
    gc.unfreeze()


class Rank:
    """One rank of a run, what it has read, and the states that its framework kept after each step."""

    def __init__(self, cluster: Cluster, rank: int, world: int, folder: Path, resumed_after: int = 0) -> None:
        self.cluster, self.rank, self.world, self.folder = cluster, rank, world, folder
        self.steps_left = EPOCHS * STEPS - resumed_after
        self.dataset = cluster.dataset(columns=["id", "x"])
        self.options: dict[str, Any] = {**SETTINGS, "rank": rank, "world": world}
        self.read: list[tuple[list[int], list[float]]] = []
        self.samples: list[list[int]] = []
        self.states: list[Any] = []
        self.loader: forebay.torch.Loader[Any] | None = None

    def made(self) -> Any:
        self.loader = forebay.torch.Loader(self.dataset, **self.options)
        return self.loader

    def take(self, batch: Any) -> None:
        ids, numbers = batch["id"].tolist(), getattr(batch, "sample_ids", None)
        self.read.append((ids, batch["x"].tolist()))
        # Some frameworks hand on the columns alone.
        self.samples.append(ids if numbers is None else numbers.tolist())

    def ids(self) -> list[list[int]]:
        """Of each step; the values must be theirs."""
        assert all(x == id / 4 for ids, xs in self.read for id, x in zip(ids, xs, strict=True))
        return [ids for ids, _ in self.read]

    def at(self, step: int) -> Path:
        return self.folder / f"{self.rank}-{step}"

    def epochs(self, batches: Any, state_dict: Callable[[], Any]) -> None:
        """Reads all epochs that are left, each an iteration."""
        while self.steps_left > len(self.read):
            before = len(self.read)
            for batch in batches:
                self.take(batch)
                self.states.append(state_dict())
            assert len(self.read) > before, "an empty epoch"


def plain(rank: Rank, state: Any) -> None:
    loader = rank.made()
    if state is not None:
        loader.load_state_dict(json.loads(state))
    rank.epochs(loader, lambda: json.dumps(loader.state_dict()))


def stateful_data_loader(rank: Rank, state: Any) -> None:
    loader: Any = StatefulDataLoader(forebay.torch.IterableDataset(rank.dataset, **rank.options), batch_size=None)
    if state is not None:
        loader.load_state_dict(state)
    rank.epochs(loader, loader.state_dict)


def sampler(rank: Rank, state: Any) -> None:
    rows = forebay.torch.MapDataset(rank.dataset)
    numbers = forebay.torch.Sampler(rank.dataset, **rank.options)
    loader: Any = StatefulDataLoader(rows, batch_sampler=numbers, collate_fn=rows.collate)
    if state is not None:
        loader.load_state_dict(state)
    rank.epochs(loader, loader.state_dict)


def torchdata_nodes(rank: Rank, state: Any) -> None:
    ahead = torchdata.nodes.Prefetcher(forebay.torchdata.Node(rank.made()), prefetch_factor=2)
    loader = torchdata.nodes.Loader(ahead)
    if state is not None:
        loader.load_state_dict(state)
    rank.epochs(loader, loader.state_dict)


def grain_pipeline(rank: Rank, state: Any) -> None:
    pipeline = forebay.grain.IterDataset(rank.made()).map(lambda batch: batch)
    while rank.steps_left > len(rank.read):
        batches = iter(grain.experimental.ThreadPrefetchIterDataset(pipeline, prefetch_buffer_size=2))
        if state is not None:
            batches.set_state(state)
        state = None
        for batch in batches:
            rank.take(batch)
            rank.states.append(batches.get_state())


def accelerated(rank: Rank, state: Any) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    loader = rank.made()
    accelerator.register_for_checkpointing(loader)
    if state is not None:
        accelerator.load_state(state)

    def saved() -> str:
        if state is None:
            accelerator.save_state(str(rank.at(len(rank.read))))
        return str(rank.at(len(rank.read)))

    rank.epochs(loader, saved)


class Lit(pl.LightningModule):
    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.slope, self.of = torch.nn.Parameter(torch.zeros(1)), rank

    def training_step(self, batch: Any, number: int) -> Any:
        self.of.take(batch)
        return (self.slope * batch["x"]).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def lightning(rank: Rank, state: Any) -> None:
    saves = ModelCheckpoint(rank.folder, f"{rank.rank}-{{step}}", every_n_train_steps=1, save_top_k=-1)
    quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    callbacks = [saves] if state is None else []
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=EPOCHS, callbacks=callbacks, enable_checkpointing=state is None, **quiet
    )
    trainer.fit(Lit(rank), train_dataloaders=rank.made(), ckpt_path=state)
    rank.states = [str(rank.folder / f"{rank.rank}-step={step}.ckpt") for step in range(1, 1 + len(rank.read))]


class HfTrainer(forebay.hf.TrainerMixin, transformers.Trainer):
    pass


class HfModel(torch.nn.Module):
    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.slope, self.of = torch.nn.Parameter(torch.zeros(1)), rank

    def forward(self, id: Any, x: Any) -> Any:
        self.of.take({"id": id, "x": x})
        return {"loss": (self.slope * x).mean()}


def hf_trainer(rank: Rank, state: Any) -> None:
    folder = rank.at(0)
    args = transformers.TrainingArguments(
        str(folder),
        num_train_epochs=EPOCHS,
        save_strategy="steps" if state is None else "no",
        save_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    HfTrainer(model=HfModel(rank), args=args, train_loader=rank.made()).train(resume_from_checkpoint=state)
    rank.states = [str(folder / f"checkpoint-{step}") for step in range(1, 1 + len(rank.read))]


def torchtitan(rank: Rank, state: Any) -> None:
    """Its rows are of another dataset: the first token stands for the row."""
    config = forebay.torchtitan.DataLoader.Config(dataset=rank.cluster.uri("tokens"), seed=3, shuffle=2)
    batch = TOKENS_BATCH // rank.world
    loader: Any = config.build(
        dp_world_size=rank.world, dp_rank=rank.rank, seq_len=TOKENS - 1, local_batch_size=batch, tokenizer=None
    )
    if state is not None:
        state_dict_loader.load({"dataloader": loader}, checkpoint_id=state, no_dist=True)
    for (inputs, _), _ in zip(loader, range(rank.steps_left), strict=False):
        ids = inputs["input"][:, 0]
        rank.take({"id": ids, "x": ids / 4})
        if state is None:
            state_dict_saver.save({"dataloader": loader}, checkpoint_id=rank.at(len(rank.read)), no_dist=True)
        rank.states.append(rank.at(len(rank.read)))


@cache
def digest(cluster: Cluster, rank: int, world: int) -> str:
    """Of a rank's last epoch, by the loader of the command."""
    flags = ["--batch", str(GLOBAL_BATCH), "--seed", "3", "--window", "2", "--ending", "drop", "--epochs", str(EPOCHS)]
    said = cluster.forebay("epoch", cluster.uri(), *flags, "--rank", str(rank), "--world", str(world))
    found: str = said["epochs"][-1]["order_digest"]
    return found


class Truth:
    """Batches of processes that are never stopped, by the Arrow loader: of each rank the first numbers of its rows, and the
    digest of its last epoch."""

    def __init__(self, cluster: Cluster, name: str, column: str, batch: int) -> None:
        # As `forebay.torchtitan` opens it.
        if name == "tokens":
            self._dataset = forebay.dataset(cluster.uri(name), endpoint=cluster.endpoint, columns=[column])
            assert self._dataset.num_segments == 1
            self._segments = [self._dataset.num_rows]
        else:
            self._dataset = cluster.dataset(columns=[column])
            self._segments = [segment["rows"] for segment in cluster.forebay("inspect", cluster.uri(name))["segments"]]
        self._column, self._settings = column, {**SETTINGS, "global_batch": batch}
        self.digests: dict[tuple[int, int], str] = {}

    def of(self, rank: int, world: int) -> list[list[int]]:
        with forebay.Loader(self._dataset, rank=rank, world=world, **self._settings) as loader:
            rows = [pa.array(batch[self._column]).to_pylist() for _ in range(EPOCHS) for batch in loader]
            self.digests[rank, world] = loader.digest or ""
        assert len(rows) == EPOCHS * STEPS
        return [[row[0] if isinstance(row, list) else row for row in batch] for batch in rows]

    def digest_of(self, rank: Rank) -> str:
        """Of the samples that the batches of a rank's last epoch hold, each in the place of the batch where it lies."""
        order = ORDER.order_of_one(self._segments, f"window({SETTINGS['shuffle']})", SETTINGS["seed"], EPOCHS - 1)
        segment_of = [number for number, rows in enumerate(self._segments) for _ in range(rows)]
        run = {"batch": self._settings["global_batch"], "world": rank.world, "ending": "drop", "layout": "segment"}
        steps = zip(ORDER.steps_of(order, segment_of, run, 0, rank.rank), rank.samples[-STEPS:], strict=True)
        placed = [zip((position for position, _ in slots), samples, strict=True) for slots, samples in steps]
        digest: str = ORDER.digest(placed)
        return digest


FRAMEWORKS = [
    plain,
    stateful_data_loader,
    sampler,
    torchdata_nodes,
    grain_pipeline,
    accelerated,
    lightning,
    hf_trainer,
    torchtitan,
]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4), (4, 1), (1, 4), (4, 2)])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_resumed_at_every_step(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    framework: Callable[[Rank, Any], None],
    before: int,
    after: int,
) -> None:
    monkeypatch.setenv("FOREBAY_ENDPOINT", cluster.endpoint)
    names = ("tokens", "tokens", TOKENS_BATCH) if framework is torchtitan else ("rows", "id", GLOBAL_BATCH)
    truth = Truth(cluster, *names)
    stopped = [Rank(cluster, rank, before, tmp_path) for rank in range(before)]
    for rank in stopped:
        framework(rank, None)
        assert rank.ids() == truth.of(rank.rank, before)
    whole = [set().union(*ranks) for ranks in zip(*(rank.ids() for rank in stopped), strict=True)]
    order = [truth.of(rank, after) for rank in range(after)]
    # Each global batch has the same rows, whatever ranks share it.
    assert whole == [set().union(*ranks) for ranks in zip(*order, strict=True)]
    for step in range(1, STEPS + 1):
        for number in range(after):
            rank = Rank(cluster, number, after, tmp_path / f"after-{step}", step)
            framework(rank, stopped[0].states[step - 1])
            assert rank.ids() == order[number][step:], f"resumed after step {step}"
            assert truth.digest_of(rank) == truth.digests[number, after]
            if rank.loader is not None:
                assert rank.loader.digest == truth.digests[number, after] == digest(cluster, number, after)
                rank.loader.close()
