"""The Trainer of Hugging Face transformers over Forebay's loader, with exact resume from its checkpoints.

    torchrun --nproc-per-node 2 hf_trainer.py URI FOLDER [STEPS]

Trains on the columns `image` and `label` of the dataset at URI, read through the cache at $FOREBAY_ENDPOINT. With STEPS the
run stops after that number; started again, on any number of ranks, it goes on from the last checkpoint in FOLDER with the
very next batch. `python hf_trainer.py ...` is a run of one process.
"""

import gc
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import transformers
from transformers.trainer_utils import get_last_checkpoint

import forebay.hf
import forebay.torch

EPOCHS = 2


class Trainer(forebay.hf.TrainerMixin, transformers.Trainer):
    pass


class Classifier(torch.nn.Module):
    """Its arguments have the names of the columns."""

    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(28 * 28, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.network(image.float() / 255)
        return {"loss": torch.nn.functional.cross_entropy(scores, label), "logits": scores}


class StopAfter(transformers.TrainerCallback):
    """Ends the run as if the job's time were over."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.steps:
            control.should_save = control.should_training_stop = True


def main(uri: str, folder: str, steps: int | None) -> None:
    os.makedirs(folder, exist_ok=True)
    torch.manual_seed(0)
    # Rank and number of ranks come from torchrun.
    loader = forebay.torch.Loader(uri, global_batch=256, seed=1, columns=["image", "label"])
    args = transformers.TrainingArguments(
        folder, num_train_epochs=EPOCHS, save_strategy="epoch", report_to=[], use_cpu=True, disable_tqdm=True
    )
    callbacks = [] if steps is None else [StopAfter(steps)]
    model = Classifier()
    trainer = Trainer(model=model, args=args, train_loader=loader, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
    weights = sum(float(parameter.detach().double().abs().sum()) for parameter in model.parameters())
    if trainer.is_world_process_zero():
        step = trainer.state.global_step
        print(f"step {step}, epoch {loader.epoch}, {loader.steps_left} steps left, weights {weights:.9f}")
    if dist.is_initialized():
        # What Gloo's threads still hold when Python ends would abort the process, after all is done: end them before.
        del trainer, model
        gc.collect()
        dist.destroy_process_group()


main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
