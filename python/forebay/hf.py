"""Forebay's loader in the Trainer of Hugging Face transformers.

>>> class Trainer(forebay.hf.TrainerMixin, transformers.Trainer):  # doctest: +SKIP
...     pass
>>> loader = forebay.torch.Loader("s3://bucket/train", batch_size=8, columns=["input_ids", "labels"])  # doctest: +SKIP
>>> Trainer(model=model, args=args, train_loader=loader).train(resume_from_checkpoint=True)  # doctest: +SKIP
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import transformers
from transformers.trainer_utils import get_last_checkpoint

from forebay._errors import InvalidError, NotFoundError
from forebay._torch_loader import Batch, Loader

__all__ = ["STATE_FILE", "TrainerMixin"]

STATE_FILE = "forebay.json"
"""In a checkpoint's folder: the loader's state."""


class TrainerMixin:
    """Before `transformers.Trainer` in the bases of a class: trains on the batches of `train_loader`.

    The names of its columns must be those of the model's arguments. Each checkpoint holds the loader's state, and a run
    that is resumed goes on with the very next batch, on any number of ranks; nothing is read only to be skipped. The batch
    size is the loader's: `per_device_train_batch_size` has no meaning.
    """

    def __init__(self, *args: Any, train_loader: Loader[Batch] | Loader[Any], **kwargs: Any) -> None:
        self._train_loader = train_loader
        super().__init__(*args, **kwargs)
        trainer: Any = self
        trainer.add_callback(_Saves(train_loader))
        # What was done is not to be read again, and skipped: the loader stands there.
        trainer.args.ignore_data_skip = True

    def get_train_dataloader(self) -> Any:
        """The loader itself. `Trainer` calls this."""
        return self._train_loader

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Trains, from a checkpoint if one is given, or from the last one if it is True. The loader goes on from its state.

        Raises `NotFoundError` for a checkpoint without such a state.
        """
        trainer: Any = self
        found = resume_from_checkpoint
        checkpoint = get_last_checkpoint(trainer.args.output_dir) if found is True else found or None
        if checkpoint is not None:
            self._train_loader.load_state_dict(_state(checkpoint))
        base: Any = super()
        return base.train(checkpoint, *args, **kwargs)


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
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if state.is_world_process_zero and folder.is_dir():
            partial = folder / (STATE_FILE + ".partial")
            partial.write_text(json.dumps(self._loader.state_dict()))
            os.replace(partial, folder / STATE_FILE)
