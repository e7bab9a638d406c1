"""The Trainer of transformers over a loader: the samples of every update, also after a resume in mid-epoch."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import SEGMENT_BYTES, Cluster, needs
from test_examples import torchrun

import forebay

needs("torch")

import torch
import transformers

import forebay.hf
import forebay.torch

EPOCHS = 2


class Trainer(forebay.hf.TrainerMixin, transformers.Trainer):
    pass


class Line(torch.nn.Module):
    """Notes the samples that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[list[int]] = []

    def forward(self, id: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(id.tolist())
        return {"loss": ((self.slope * x / 100 - 1) ** 2).mean()}


class Updates(transformers.TrainerCallback):
    """Notes after which batches the model was updated, and ends the run after some."""

    def __init__(self, model: Line, last: int | None) -> None:
        self.model, self.last = model, last
        self.after: list[int] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.after.append(len(self.model.seen))
        if state.global_step == self.last:
            control.should_save = control.should_training_stop = True


def trained(
    cluster: Cluster, folder: Path, batch: int, accumulated: int, last: int | None = None, resumed: bool = False
) -> tuple[Line, Updates, Any]:
    torch.manual_seed(0)
    loader = forebay.torch.Loader(cluster.dataset(columns=["id", "x"]), batch_size=batch, seed=3, shuffle=2)
    args = transformers.TrainingArguments(
        str(folder),
        num_train_epochs=EPOCHS,
        gradient_accumulation_steps=accumulated,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    model = Line()
    updates = Updates(model, last)
    trainer = Trainer(model=model, args=args, train_loader=loader, callbacks=[updates])
    trainer.train(resume_from_checkpoint=resumed)
    return model, updates, trainer


# An epoch has 12 batches of 50: updates of 5, 5 and 2 of them.
@pytest.mark.parametrize("last", [1, 2, 3, 4])
def test_accumulated_gradients_resumed_are_as_if_never_stopped(cluster: Cluster, tmp_path: Path, last: int) -> None:
    straight, updates, trainer = trained(cluster, tmp_path / "straight", 50, 5)
    assert updates.after == [5, 10, 12, 17, 22, 24] and trainer.state.global_step == 6
    assert trainer.num_examples(trainer.get_train_dataloader()) == 600
    stopped, before, _ = trained(cluster, tmp_path / "stopped", 50, 5, last)
    resumed, after, trainer = trained(cluster, tmp_path / "stopped", 50, 5, resumed=True)
    done = len(stopped.seen)
    assert stopped.seen + resumed.seen == straight.seen
    assert before.after + [done + batch for batch in after.after] == updates.after
    assert (trainer.state.global_step, trainer.state.epoch) == (6, EPOCHS)
    assert torch.equal(resumed.slope, straight.slope)


def test_updates_of_other_batches_and_the_same_rows_go_on(cluster: Cluster, tmp_path: Path) -> None:
    straight, _, _ = trained(cluster, tmp_path / "straight", 50, 4)
    stopped, _, _ = trained(cluster, tmp_path / "stopped", 50, 4, 2)
    resumed, updates, trainer = trained(cluster, tmp_path / "stopped", 25, 8, resumed=True)
    rows = [sum(seen, []) for seen in (stopped.seen + resumed.seen, straight.seen)]
    for first in range(0, EPOCHS * 600, 200):
        assert sorted(rows[0][first : first + 200]) == sorted(rows[1][first : first + 200]), "one update's"
    assert updates.after == [8, 16, 24, 32] and trainer.state.global_step == 6


@pytest.mark.parametrize(("batch", "accumulated"), [(50, 4), (25, 5), (50, 1)])
def test_updates_of_other_rows_are_refused(cluster: Cluster, tmp_path: Path, batch: int, accumulated: int) -> None:
    trained(cluster, tmp_path, 50, 5, 1)
    told = rf"updates of 250 rows, 3 in an epoch; this one has updates of {batch * accumulated} rows, .* as they were"
    with pytest.raises(forebay.InvalidError, match=told):
        trained(cluster, tmp_path, batch, accumulated, resumed=True)


def test_checkpoints_that_tell_no_place(cluster: Cluster, tmp_path: Path) -> None:
    trained(cluster, tmp_path, 50, 5, 1)
    state = tmp_path / "checkpoint-1" / forebay.hf.STATE_FILE
    saved = json.loads(state.read_text())
    del saved["updates"]
    state.write_text(json.dumps(saved))
    with pytest.raises(forebay.InvalidError, match="a size it does not tell"):
        trained(cluster, tmp_path, 50, 5, resumed=True)
    state.unlink()
    with pytest.raises(forebay.NotFoundError, match="saved without"):
        trained(cluster, tmp_path, 50, 5, resumed=True)


def test_the_last_checkpoint_of_none_is_an_error_of_transformers(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No valid checkpoint found in output directory"):
        trained(cluster, tmp_path, 50, 5, resumed=True)


def test_the_state_is_where_the_checkpoint_is(cluster: Cluster, tmp_path: Path) -> None:
    """With `save_on_each_node` another process than the world's first writes a node's checkpoint."""
    loader = forebay.torch.Loader(cluster.dataset(columns=["id", "x"]), batch_size=50)
    saves, state = forebay.hf._Saves(loader), SimpleNamespace(global_step=1, is_world_process_zero=False)
    args = SimpleNamespace(output_dir=tmp_path, should_save=True, gradient_accumulation_steps=1)
    saves.on_save(args, state, None)
    assert not list(tmp_path.iterdir())
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    args.should_save = False
    saves.on_save(args, state, None)
    assert not list(folder.iterdir())
    args.should_save = True
    saves.on_save(args, state, None)
    assert [file.name for file in folder.iterdir()] == [forebay.hf.STATE_FILE]
    saved = json.loads((folder / forebay.hf.STATE_FILE).read_text())
    assert saved == {**loader.state_dict(), "updates": {"rows": 50, "of_an_epoch": 12}}


def test_the_batch_size_is_the_loader_s(cluster: Cluster, tmp_path: Path) -> None:
    args = transformers.TrainingArguments(str(tmp_path), auto_find_batch_size=True, use_cpu=True, report_to=[])
    loader = forebay.torch.Loader(cluster.dataset(columns=["id", "x"]), batch_size=50)
    with pytest.raises(forebay.InvalidError, match="auto_find_batch_size"):
        Trainer(model=Line(), args=args, train_loader=loader)


# One rank of several: notes the numbers and the values of its rows, step by step. A checkpoint after each step.
RANK = """
import gc, json, sys
import torch, transformers
import forebay.hf, forebay.torch

class Trainer(forebay.hf.TrainerMixin, transformers.Trainer):
    pass

class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.slope, self.seen = torch.nn.Parameter(torch.zeros(1)), []

    def forward(self, id, x):
        self.seen.append([id.tolist(), x.tolist()])
        return {"loss": ((self.slope * x / 100 - 1) ** 2).mean()}

uri, folder, name, resumed = sys.argv[1:]
dataset = forebay.dataset(uri, columns=["id", "x"], segment_bytes=SEGMENT_BYTES)
loader = forebay.torch.Loader(dataset, global_batch=96, seed=3, shuffle=2)
args = transformers.TrainingArguments(
    folder, num_train_epochs=EPOCHS, save_strategy="no" if resumed else "steps", save_steps=1, report_to=[], use_cpu=True,
    disable_tqdm=True, ddp_find_unused_parameters=False,
)
model = Line()
trainer = Trainer(model=model, args=args, train_loader=loader)
trainer.train(resume_from_checkpoint=resumed or None)
with open(f"{folder}/{name}-{loader.rank}.json", "w") as file:
    json.dump({"world": loader.world, "seen": model.seen, "slope": model.slope.item()}, file)
del trainer, model
gc.collect()
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
"""


def test_ranks_of_torchrun_resumed_on_another_number(cluster: Cluster, tmp_path: Path) -> None:
    """The rows and values of each rank are a loader's; the weights differ by the order of sums alone."""
    script = tmp_path / "rank.py"
    script.write_text(f"SEGMENT_BYTES, EPOCHS = {SEGMENT_BYTES}, {EPOCHS}\n{RANK}")

    def slope(name: str, world: int, resumed_after: int) -> float:
        checkpoint = tmp_path / f"checkpoint-{resumed_after}" if resumed_after else ""
        torchrun(cluster, world, str(script), tmp_path, name, checkpoint, data="rows")
        said = [json.loads((tmp_path / f"{name}-{rank}.json").read_text()) for rank in range(world)]
        for rank, one in enumerate(said):
            settings: Any = {"global_batch": 96, "seed": 3, "shuffle": 2, "rank": rank, "world": world}
            with forebay.torch.Loader(cluster.dataset(columns=["id", "x"]), **settings) as loader:
                rows = [[batch["id"].tolist(), batch["x"].tolist()] for _ in range(EPOCHS) for batch in loader]
            assert one["world"] == world and one["seen"] == rows[resumed_after:]
        found: float = said[0]["slope"]
        return found

    straight = slope("straight", 2, 0)
    # Where an epoch ends, and in mid-epoch.
    assert slope("same", 2, 6) == straight
    assert slope("one", 1, 4) == pytest.approx(straight, rel=1e-5)
