"""Lightning that starts its ranks by itself: its launcher tells the first process nothing, and the others half."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from conftest import ROWS, Cluster, needs

needs("torch")

SCRIPT = """
import json, sys
from pathlib import Path

import lightning.pytorch as pl
import torch

import forebay.torch

uri, folder, where = sys.argv[1:]


def made():
    return forebay.torch.Loader(uri, batch_size=25, seed=3, columns=["id", "x"])


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.slope, self.seen = torch.nn.Parameter(torch.zeros(1)), []

    def train_dataloader(self):
        return made()

    def training_step(self, batch, number):
        assert batch.sample_ids.tolist() == batch["id"].tolist()
        self.seen += batch["id"].tolist()
        return (self.slope * batch["x"]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_end(self):
        Path(folder, f"{self.global_rank}.json").write_text(json.dumps(self.seen))


loader = made() if where == "before" else None
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, **quiet)
trainer.fit(Line(), loader)
"""

# Variables of launchers that the tests themselves may have.
_LAUNCHED = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}


def fitted(cluster: Cluster, folder: Path, where: str) -> tuple[int, str]:
    """Runs two ranks with a loader that is made in `train_dataloader` or before: the exit status, and the errors of both."""
    script = folder / "fit.py"
    script.write_text(SCRIPT)
    environment = {name: value for name, value in os.environ.items() if name not in _LAUNCHED}
    environment |= {"FOREBAY_ENDPOINT": cluster.endpoint, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), cluster.uri(), str(folder), where]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        # The end of the errors is the end of both.
        errors = process.communicate(timeout=240)[1]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, errors


def test_a_loader_of_train_dataloader_reads_a_rank_s_share(cluster: Cluster, tmp_path: Path) -> None:
    status, errors = fitted(cluster, tmp_path, "train_dataloader")
    assert status == 0, errors
    halves = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [len(half) for half in halves] == [ROWS // 2] * 2 and sorted(halves[0] + halves[1]) == list(range(ROWS))


def test_a_loader_made_before_the_ranks_is_refused_with_advice(cluster: Cluster, tmp_path: Path) -> None:
    status, errors = fitted(cluster, tmp_path, "before")
    assert status != 0 and not list(tmp_path.glob("*.json"))
    assert "make it after init_process_group() (in Lightning in train_dataloader()," in errors
