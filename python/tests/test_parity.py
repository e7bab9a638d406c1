"""Training in Python and by `forebay-train`: the same batches, the same images, the same parameters, bit for bit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from conftest import BIN, Cluster, needs
from test_examples import torchrun

torch = needs("torch")
load_file = needs("safetensors.torch").load_file

MODELS = {
    "convnet": (50, ["--model", "convnet"]),
    # Cropped, resized and mirrored.
    "resnet18": (200, ["--model", "resnet18", "--image-size", "32", "--classes", "10"]),
}


@pytest.mark.parametrize("model", MODELS)
def test_python_goes_on_bit_for_bit_where_forebay_train_was(cluster: Cluster, tmp_path: Path, model: str) -> None:
    """Two ranks of `forebay-train` go through an epoch; two of Python through the rest of it, from a checkpoint."""
    batch, options = MODELS[model]
    steps = 800 // batch
    taken = steps // 2
    uri, folder = cluster.uri("digits"), tmp_path / "run"
    command = [str(BIN / "forebay-train"), "--endpoint", cluster.endpoint, "--train", uri, "--test", uri, *options]
    command += ["--epochs", "1", "--batch", str(batch), "--nproc", "2", "--schedule", "constant", "--lr", "0.01"]
    command += ["--checkpoint-dir", str(folder), "--checkpoint-every", str(taken)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # What Python's torch needs, not this program's.
    environment.pop("LD_LIBRARY_PATH", None)
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=500)
    out = tmp_path / "out.safetensors"
    said = torchrun(cluster, 2, "continue_run.py", folder / f"step-{taken:010}", out, data="digits")
    assert said == f"epoch 1, {steps} steps left"
    begun, ended = (load_file(folder / f"step-{step:010}/weights.safetensors") for step in [taken, steps])
    ours = load_file(out)
    for name, weights in ended.items():
        assert torch.equal(ours[name], weights), f"{name} differs after {steps - taken} steps"
        assert not torch.equal(begun[name], weights), f"{name} was not trained"

