"""Forebay's loader in the Trainer of Hugging Face transformers.

>>> class Trainer(forebay.hf.TrainerMixin, transformers.Trainer):  # doctest: +SKIP
...     pass
>>> loader = forebay.torch.Loader("s3://bucket/train", batch_size=8, columns=["input_ids", "labels"])  # doctest: +SKIP
>>> Trainer(model=model, args=args, train_loader=loader).train(resume_from_checkpoint=True)  # doctest: +SKIP
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.utils.data
import transformers
from transformers.trainer_utils import get_last_checkpoint

from forebay._errors import InvalidError, NotFoundError
from forebay._torch_loader import Batch, Loader

__all__ = ["STATE_FILE", "TrainerMixin"]

STATE_FILE = "forebay.json"
"""In a checkpoint's folder: the loader's state, and how many rows an update takes and updates an epoch has."""

_UPDATES = "updates"


class TrainerMixin:
    """Before `transformers.Trainer` in the bases of a class: trains on the batches of `train_loader`.

    The names of its columns must be those of the model's arguments. The batch size is the loader's:
    `per_device_train_batch_size` has no meaning. An update takes `gradient_accumulation_steps` batches of each rank.

    Each checkpoint holds the loader's state, and a run that is resumed goes on with the very next batch; nothing is read only
    to be skipped. The number of ranks, the batch size and `gradient_accumulation_steps` may be others then, as long as the
    rows of an update (the loader's `global_batch` times `gradient_accumulation_steps`) and the updates of an epoch stay the
    same: `Trainer` knows its place by counting updates.

    Making one raises `InvalidError` for ``auto_find_batch_size=True``, and what `Trainer` raises.
    """

    def __init__(self, *args: Any, train_loader: Loader[Batch] | Loader[Any], **kwargs: Any) -> None:
        self._train_loader = train_loader
        self._train_batches = _Batches(train_loader)
        super().__init__(*args, **kwargs)
        trainer: Any = self
        if trainer.args.auto_find_batch_size:
            raise InvalidError("auto_find_batch_size=True: the batch size is that of train_loader=, and stays as it is")
        trainer.add_callback(_Saves(train_loader))
        # `Trainer` counts what it skips; `_Batches` has nothing read for it.
        trainer.args.ignore_data_skip = False

    def get_train_dataloader(self) -> Any:
        """The loader, as the `DataLoader` that `Trainer` skips batches of. `Trainer` calls this."""
        return _TrainerLoader(self._train_batches)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Trains, from a checkpoint if one is given, or from the last one if it is True. The loader goes on from its state.

        Raises `NotFoundError` for a checkpoint without such a state, `InvalidError` for one of a run whose updates have other
        rows, what `Loader.load_state_dict` and iterating over the loader raise, and what `Trainer` raises where it is True
        and there is no checkpoint.
        """
        trainer: Any = self
        wanted = resume_from_checkpoint
        checkpoint = get_last_checkpoint(trainer.args.output_dir) if wanted is True else wanted or None
        self._train_batches.skipped = 0
        if checkpoint is not None:
            loader, state = self._train_loader, _state(checkpoint)
            _check(checkpoint, state.get(_UPDATES), _updates(loader, trainer.args))
            loader.load_state_dict(state)
            self._train_batches.skipped = len(loader) - loader.steps_left
        base: Any = super()
        return base.train(checkpoint or (True if wanted is True else None), *args, **kwargs)


class _Batches(torch.utils.data.IterableDataset[Any]):
    """A loader's epochs, the next after a resume with as many empty batches before it as `Trainer` skips."""

    def __init__(self, loader: Loader[Any]) -> None:
        self.loader = loader
        self.skipped = 0

    def __len__(self) -> int:
        """Rows of an epoch."""
        return len(self.loader) * self.loader.global_batch

    def __iter__(self) -> Iterator[Any]:
        skipped, self.skipped = self.skipped, 0
        for _ in range(skipped):
            yield None
        yield from self.loader


class _TrainerLoader(torch.utils.data.DataLoader[Any]):
    """What `Trainer` takes for a `DataLoader` of its own: it hands on what the loader gives."""

    def __init__(self, batches: _Batches) -> None:
        super().__init__(batches, batch_size=None, collate_fn=_as_it_is)
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches.loader)

    def set_epoch(self, epoch: int) -> None:
        self._batches.loader.set_epoch(epoch)


def _as_it_is(batch: Any) -> Any:
    return batch


def _updates(loader: Loader[Any], args: Any) -> dict[str, int]:
    """What `Trainer` finds its place by: rows that an update takes on all ranks, and updates of an epoch."""
    batches = args.gradient_accumulation_steps
    return {"rows": loader.global_batch * batches, "of_an_epoch": -(-len(loader) // batches)}


def _check(checkpoint: str, saved: Any, here: dict[str, int]) -> None:
    if saved != here:
        was = f"{saved['rows']} rows, {saved['of_an_epoch']} in an epoch" if isinstance(saved, dict) else "a size it does not tell"
        raise InvalidError(
            f"{checkpoint} is of a run with updates of {was}; this one has updates of {here['rows']} rows, "
            f"{here['of_an_epoch']} in an epoch, so its place cannot be found: choose batch_size= (or global_batch=) of the loader "
            "and gradient_accumulation_steps so that batch_size x ranks x gradient_accumulation_steps and the updates of an "
            "epoch are as they were"
        )


def _state(checkpoint: str) -> Any:
    path = Path(checkpoint, STATE_FILE)
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise NotFoundError(f"{checkpoint} has no {STATE_FILE}: it was saved without forebay.hf.TrainerMixin") from None
    except ValueError as e:
        raise InvalidError(f"{path}: no state of a loader: {e}") from e


class _Saves(transformers.TrainerCallback):
    """Adds the loader's state to each checkpoint."""

    def __init__(self, loader: Loader[Any]) -> None:
        self._loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Where the rest of the checkpoint is written: by one process, or by one of each node (`save_on_each_node`)."""
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if args.should_save and folder.is_dir():
            # Nodes may share a disk after all.
            partial = folder / f"{STATE_FILE}.{os.getpid()}.partial"
            partial.write_text(json.dumps({**self._loader.state_dict(), _UPDATES: _updates(self._loader, args)}))
            os.replace(partial, folder / STATE_FILE)
