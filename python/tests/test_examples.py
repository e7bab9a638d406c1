"""The examples, as their texts say."""

from __future__ import annotations

import itertools
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import BIN, Cluster, needs

EXAMPLES = Path(__file__).parent.parent / "examples"
MNIST = Path(__file__).parent.parent.parent / "tests/data/mnist/test"


def test_epoch() -> None:
    command = [sys.executable, str(EXAMPLES / "epoch.py"), f"file://{MNIST}"]
    read = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.strip()
    command = [str(BIN / "forebay"), "epoch", f"file://{MNIST}", "--direct", "--json", "--batch", "500", "--seed", "1"]
    said = subprocess.run([*command, "--ending", "drop"], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert f'"order_digest": "{read}"' in said.stdout and re.fullmatch("[0-9a-f]{32}", read)


_PORTS = itertools.count(os.getpid() * 131)


def free_port() -> int:
    """A port for rank 0 to listen at, some seconds later. It lies below the range from which the kernel takes those of
    connections, and behind those of nodes (tests/src/harness/ports.rs), so that nobody takes it meanwhile."""
    for number in itertools.islice(_PORTS, 1000):
        port = 30_000 + number % 2_700
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def torchrun(cluster: Cluster, world: int, script: str, *arguments: object, data: str = "mnist") -> str:
    """Runs an example's ranks as torchrun would; what rank 0 says."""
    command = [sys.executable, str(EXAMPLES / script), cluster.uri(data), *map(str, arguments)]
    common = {**os.environ, "FOREBAY_ENDPOINT": cluster.endpoint, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    common["PYTHONFAULTHANDLER"] = "1"
    ranks = [
        subprocess.Popen(
            command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(world)
    ]
    try:
        said = [ended(rank) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * world
    return said[0].strip()


def ended(process: subprocess.Popen[str]) -> str:
    """Its output. One that does not end says where it stands: here its threads, on its standard error Python."""
    try:
        return process.communicate(timeout=240)[0]
    except subprocess.TimeoutExpired:
        tasks = Path(f"/proc/{process.pid}/task").iterdir()
        waits = {task.name: [(task / name).read_text() for name in ("comm", "wchan", "syscall")] for task in tasks}
        process.send_signal(signal.SIGABRT)
        out = process.communicate(timeout=10)[0]
        raise AssertionError(f"it did not end: {waits}\n{out}") from None


def alone(cluster: Cluster, script: str, *arguments: object) -> str:
    """Runs an example that has one process; what it says."""
    command = [sys.executable, str(EXAMPLES / script), cluster.uri("mnist"), *map(str, arguments)]
    settings = {"FOREBAY_ENDPOINT": cluster.endpoint, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    run = subprocess.run(
        command, env={**environment, **settings}, stdout=subprocess.PIPE, text=True, check=True, timeout=240
    )
    return run.stdout.strip()


def test_ddp_resumed_is_as_if_never_stopped(cluster: Cluster, tmp_path: Path) -> None:
    torch = needs("torch")
    straight = torchrun(cluster, 2, "ddp.py", tmp_path / "straight")
    assert "epoch 2, 39 steps left" in straight
    assert "epoch 0, 29 steps left" in torchrun(cluster, 2, "ddp.py", tmp_path / "stopped", 10)
    shutil.copy(tmp_path / "stopped", tmp_path / "one")
    assert torchrun(cluster, 2, "ddp.py", tmp_path / "stopped") == straight
    one, other = (torch.load(tmp_path / name, weights_only=True) for name in ["straight", "stopped"])
    assert one["data"] == other["data"]
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])
    # Other sums of gradients, the same samples.
    assert "epoch 2, 39 steps left" in torchrun(cluster, 1, "ddp.py", tmp_path / "one")
    assert torch.load(tmp_path / "one", weights_only=True)["data"] == one["data"]


def test_torch_s_sampler_resumed_is_as_if_never_stopped(cluster: Cluster, tmp_path: Path) -> None:
    torch = needs("torch")
    straight = torchrun(cluster, 2, "distributed_sampler.py", tmp_path / "straight")
    assert straight.startswith("epoch 2, step 0, loss ")
    assert torchrun(cluster, 2, "distributed_sampler.py", tmp_path / "stopped", 10).startswith("epoch 0, step 10, ")
    shutil.copy(tmp_path / "stopped", tmp_path / "one")
    assert torchrun(cluster, 2, "distributed_sampler.py", tmp_path / "stopped") == straight
    assert torchrun(cluster, 1, "distributed_sampler.py", tmp_path / "one").startswith("epoch 2, step 0, ")
    names = ["straight", "stopped", "one"]
    straight_model, same, one = (torch.load(tmp_path / name, weights_only=True)["model"] for name in names)
    for name, weights in straight_model.items():
        assert torch.equal(same[name], weights)
        # Other sums of gradients, the same samples.
        assert torch.allclose(one[name], weights, atol=1e-5)


@pytest.mark.parametrize("script", ["train.py", "data_parallel.py"])
def test_loops_resumed_are_as_if_never_stopped(cluster: Cluster, tmp_path: Path, script: str) -> None:
    torch = needs("torch")
    straight = alone(cluster, script, tmp_path / "straight")
    assert "epoch 2, 39 steps left" in straight
    assert "epoch 0, 29 steps left" in alone(cluster, script, tmp_path / "stopped", 10)
    assert alone(cluster, script, tmp_path / "stopped") == straight
    one, other = (torch.load(tmp_path / name, weights_only=True)["model"] for name in ["straight", "stopped"])
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_chance_follows_from_seed_epoch_and_sample_alone() -> None:
    """Two ranks' batches of one step differ though their images are the same; a row is shifted alike in every batch."""
    torch = needs("torch")
    from forebay.torch import Batch

    augmented = runpy.run_path(str(EXAMPLES / "train.py"), run_name="train")["augmented"]

    def shifted(samples: Sequence[int], epoch: int = 0) -> Any:
        image = torch.arange(28 * 28).repeat(len(samples), 1).remainder(256).to(torch.uint8)
        batch = Batch(image=image, label=torch.zeros(len(samples), dtype=torch.int64))
        batch.epoch, batch.step, batch.sample_ids, batch.mask = epoch, 0, torch.tensor(samples), None
        return augmented(batch)[0]

    whole, ranks = shifted(range(32)), [shifted(range(16)), shifted(range(16, 32))]
    assert not torch.equal(ranks[0], ranks[1]) and torch.equal(torch.cat(ranks), whole)
    assert torch.equal(shifted([31, 4, 17]), whole[[31, 4, 17]])
    assert torch.equal(shifted(range(32)), whole) and not torch.equal(shifted(range(32), epoch=1), whole)
    assert len({tuple(row.tolist()) for row in whole}) > 8, "each row is shifted by itself"


def test_stateful_data_loaders_give_one_order_in_all_ways(cluster: Cluster, tmp_path: Path) -> None:
    needs("torch")
    said = set()
    for way in ["here", "workers", "sampler"]:
        assert alone(cluster, "stateful_dataloader.py", tmp_path / way, way, 53) == ""
        said.add(alone(cluster, "stateful_dataloader.py", tmp_path / way, way))
    said.add(alone(cluster, "stateful_dataloader.py", tmp_path / "straight", "here"))
    assert len(said) == 1 and re.fullmatch(r"checksum \d+", said.pop())


@pytest.mark.parametrize("script", ["torchdata_nodes.py", "grain_pipeline.py"])
def test_pipelines_resumed_are_as_if_never_stopped(cluster: Cluster, tmp_path: Path, script: str) -> None:
    needs("torch")
    straight = alone(cluster, script, tmp_path / "straight")
    assert alone(cluster, script, tmp_path / "stopped", 10).startswith("epoch 0, ")
    assert alone(cluster, script, tmp_path / "stopped") == straight
    assert not straight.startswith("epoch 0, ")


def test_torchtitan_s_interface_resumed_on_another_number_of_ranks(cluster: Cluster, tmp_path: Path) -> None:
    """20 steps of 8 of 96 samples: the second epoch's eighth is the last. But for the order of sums the weights are the same."""
    needs("torch")
    straight = torchrun(cluster, 1, "torchtitan_tokens.py", tmp_path / "straight", data="tokens")
    stopped = torchrun(cluster, 2, "torchtitan_tokens.py", tmp_path / "stopped", 7, data="tokens")
    resumed = torchrun(cluster, 1, "torchtitan_tokens.py", tmp_path / "stopped", data="tokens")
    assert stopped.startswith("step 7, samples 56, weights ")
    assert all(said.startswith("step 20, samples 64, weights ") for said in [straight, resumed])
    weights = [float(said.rpartition("weights ")[2]) for said in [straight, resumed]]
    assert weights[0] == pytest.approx(weights[1], rel=1e-6)


@pytest.mark.parametrize("script", ["lightning_resume.py", "hf_trainer.py"])
def test_frameworks_resumed_are_as_if_never_stopped(cluster: Cluster, tmp_path: Path, script: str) -> None:
    needs("torch")
    for folder in ["straight", "stopped"]:
        (tmp_path / folder).mkdir()
    straight = alone(cluster, script, tmp_path / "straight").splitlines()[-1]
    assert straight.startswith("step 78, epoch 2, 39 steps left, weights ")
    stopped = alone(cluster, script, tmp_path / "stopped", 10).splitlines()[-1]
    assert stopped.startswith("step 10, epoch 0, 29 steps left")
    assert alone(cluster, script, tmp_path / "stopped").splitlines()[-1] == straight


def test_accelerate_resumed_on_another_number_of_processes(cluster: Cluster, tmp_path: Path) -> None:
    needs("torch")
    straight = torchrun(cluster, 2, "accelerate_loop.py", tmp_path / "straight")
    assert "epoch 2, 39 steps left" in straight
    assert "epoch 0, 29 steps left" in torchrun(cluster, 2, "accelerate_loop.py", tmp_path / "stopped", 10)
    shutil.copytree(tmp_path / "stopped", tmp_path / "one")
    assert torchrun(cluster, 2, "accelerate_loop.py", tmp_path / "stopped") == straight
    assert "epoch 2, 39 steps left" in torchrun(cluster, 1, "accelerate_loop.py", tmp_path / "one")


def loss_of(said: str) -> float:
    return float(said.rpartition("loss ")[2])


def test_ranks_of_a_mesh_share_their_data(cluster: Cluster, tmp_path: Path) -> None:
    """The same global batches, however the ranks share layers, also in a run that is stopped on one mesh and goes on on
    another: the same losses but for the order of sums, and the very same place in the data."""
    torch = needs("torch")
    straight = torchrun(cluster, 4, "mesh.py", 2, tmp_path / "straight")
    losses = [loss_of(torchrun(cluster, 4, "mesh.py", 1, tmp_path / "wide")), loss_of(straight)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3) and 0 < losses[0] < 2.3
    assert "29 steps left" in torchrun(cluster, 4, "mesh.py", 2, tmp_path / "stopped", 10)
    shutil.copy(tmp_path / "stopped", tmp_path / "two")
    assert torchrun(cluster, 4, "mesh.py", 2, tmp_path / "stopped") == straight and "19 steps left" in straight
    assert loss_of(torchrun(cluster, 2, "mesh.py", 1, tmp_path / "two")) == pytest.approx(losses[1], abs=1e-3)
    names = ["straight", "stopped", "two", "wide"]
    one, same, two, wide = (torch.load(tmp_path / name, weights_only=True) for name in names)
    assert one["data"] == same["data"] == two["data"] == wide["data"]
    for name, weights in one["model"].items():
        assert torch.equal(same["model"][name], weights)
        assert torch.allclose(two["model"][name], weights, atol=1e-5)
        assert torch.allclose(wide["model"][name], weights, atol=1e-5)


def test_ranks_of_a_context_share_their_rows(cluster: Cluster, tmp_path: Path) -> None:
    """The same global batches, however ranks share sequences, also in a run that is stopped on one mesh and goes on on
    another: the same losses but for the order of sums, and the very same place in the data."""
    torch = needs("torch")
    straight = loss_of(torchrun(cluster, 4, "context.py", 2, tmp_path / "straight", 10))
    wide = loss_of(torchrun(cluster, 4, "context.py", 1, tmp_path / "wide", 10))
    assert wide == pytest.approx(straight, abs=1e-4) and 0 < wide < 5
    torchrun(cluster, 4, "context.py", 2, tmp_path / "stopped", 4)
    assert loss_of(torchrun(cluster, 2, "context.py", 1, tmp_path / "stopped", 10)) == pytest.approx(straight, abs=1e-4)
    one, other = (torch.load(tmp_path / name, weights_only=True) for name in ["straight", "stopped"])
    assert one["data"] == other["data"]
    assert all(torch.allclose(one["model"][name], other["model"][name], atol=1e-4) for name in one["model"])


def test_stages_of_a_pipeline_share_their_data(cluster: Cluster, tmp_path: Path) -> None:
    """The first stage takes the images of the batches of which the last one takes the labels, also after a resume."""
    torch = needs("torch")
    said = [torchrun(cluster, ranks, "pipeline.py", tmp_path / str(ranks)) for ranks in [1, 2]]
    losses = [loss_of(text) for text in said]
    assert said[0].startswith("78 steps") and losses[0] == pytest.approx(losses[1], abs=1e-4) and 0 < losses[0] < 2.3
    assert torchrun(cluster, 2, "pipeline.py", tmp_path / "stopped", 30).startswith("30 steps")
    assert loss_of(torchrun(cluster, 1, "pipeline.py", tmp_path / "stopped")) == pytest.approx(losses[1], abs=1e-4)
    one, other = (torch.load(tmp_path / name, weights_only=True) for name in ["1", "stopped"])
    assert one["data"] == other["data"]
    for stage, same in zip(one["stages"], other["stages"], strict=True):
        assert all(torch.allclose(stage[name], same[name], atol=1e-5) for name in stage)
