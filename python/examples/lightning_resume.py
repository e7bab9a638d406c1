"""Lightning: the loader as it is, and a run that goes on in mid-epoch.

    lightning_resume.py URI FOLDER [STEPS]

Trains on the columns `image` and `label` of the dataset at URI, read through the cache at $FOREBAY_ENDPOINT. With STEPS the
run stops after that number, a multiple of ten; started again, it goes on from the checkpoint in FOLDER with the very next
batch. Lightning keeps the loader's state in its checkpoints by itself.
"""

import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import forebay.torch

EPOCHS = 2


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(28 * 28, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.network(batch["image"].float() / 255), batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(uri: str, folder: str, steps: int) -> None:
    torch.manual_seed(0)
    loader = forebay.torch.Loader(uri, batch_size=256, seed=1, columns=["image", "label"])
    model = Classifier()
    quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    # After every tenth step: a checkpoint that is made when fit() is over has the place in the epoch no more.
    saves = ModelCheckpoint(folder, "run", every_n_train_steps=10, enable_version_counter=False)
    trainer = pl.Trainer(accelerator="cpu", max_epochs=EPOCHS, max_steps=steps, callbacks=[saves], **quiet)
    checkpoint = Path(folder, "run.ckpt")
    resumed = str(checkpoint) if checkpoint.exists() else None
    trainer.fit(model, train_dataloaders=loader, ckpt_path=resumed)
    weights = sum(float(parameter.detach().double().abs().sum()) for parameter in model.parameters())
    print(f"step {trainer.global_step}, epoch {loader.epoch}, {loader.steps_left} steps left, weights {weights:.9f}")


main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else -1)
