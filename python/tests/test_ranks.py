"""Who says which rank this process is."""

from __future__ import annotations

import logging
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Cluster

import forebay
from forebay._ranks import rank_and_world, ranks_sharing_processors

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4"}
SLURM = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "3"}


def test_arguments_then_launchers_in_their_order() -> None:
    assert rank_and_world(0, 2, TORCHRUN)[:2] == (0, 2)
    assert rank_and_world(None, None, {**SLURM, **TORCHRUN}) == (1, 4, "torchrun: RANK, WORLD_SIZE")
    assert rank_and_world(None, None, SLURM)[:2] == (2, 3)
    assert rank_and_world(None, None, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})[:2] == (0, 2)
    assert rank_and_world(None, None, {"PMI_RANK": "1", "PMI_SIZE": "2"})[:2] == (1, 2)
    assert rank_and_world(None, None, {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"})[:2] == (1, 2)
    # Half of a launcher is none, and a batch script is one process of Slurm's, however many its steps will have.
    assert rank_and_world(None, None, {"RANK": "1"})[:2] == (0, 1)
    assert rank_and_world(None, None, {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"})[:2] == (0, 1)
    with pytest.raises(forebay.InvalidError, match="RANK='x'"):
        rank_and_world(None, None, {**TORCHRUN, "RANK": "x"})


def test_the_innermost_launcher_counts() -> None:
    """Within one process of a Slurm step all ranks have its variables."""
    step = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    assert rank_and_world(None, None, {**step, "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"})[:2] == (3, 4)
    assert rank_and_world(None, None, {**step, "PMI_RANK": "3", "PMI_SIZE": "4"})[:2] == (3, 4)
    assert rank_and_world(None, None, {**step, "HOROVOD_RANK": "3", "HOROVOD_SIZE": "4"})[:2] == (3, 4)
    # A step that a process of `mpirun` has started.
    inner = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    assert rank_and_world(None, None, inner)[:2] == (3, 4)
    # Of Lightning's launcher.
    assert rank_and_world(None, None, {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"})[:2] == (0, 1)


def processors(monkeypatch: pytest.MonkeyPatch, of_this_process: int, of_the_machine: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(of_this_process)))
    monkeypatch.setattr(os, "cpu_count", lambda: of_the_machine)


def test_ranks_that_share_a_machine_share_its_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    processors(monkeypatch, 64, 64)
    slurm = {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}
    horovod = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "8", "HOROVOD_LOCAL_SIZE": "5"}
    mpirun = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "6"}
    by_launcher: list[tuple[dict[str, str], int]] = [
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "2"}, 2),
        ({"LOCAL_WORLD_SIZE": "2"}, 2),
        (horovod, 5),
        (mpirun, 6),
        ({"PMI_RANK": "1", "PMI_SIZE": "9", "MPI_LOCALNRANKS": "7"}, 7),
        ({**slurm, "SLURM_NODEID": "0"}, 4),
        ({**slurm, "SLURM_NODEID": "2"}, 3),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "3", "SLURM_NODEID": "5"}, 3),
        # The launcher that says the rank: the inner one.
        ({**slurm, **mpirun}, 6),
        ({**slurm, **TORCHRUN, "LOCAL_WORLD_SIZE": "2"}, 2),
        # Nobody says it.
        (TORCHRUN, 1),
        (SLURM, 1),
        ({}, 1),
    ]
    for environment, ranks in by_launcher:
        assert ranks_sharing_processors(environment) == ranks, environment
    for name, wrong in [("SLURM_STEP_TASKS_PER_NODE", "4(xx)"), ("SLURM_NODEID", "x")]:
        with pytest.raises(forebay.InvalidError, match="SLURM_STEP_TASKS_PER_NODE=.* is no number of ranks"):
            ranks_sharing_processors({**slurm, name: wrong})
    # Each rank of Slurm or MPI may have processors of its own.
    processors(monkeypatch, 16, 64)
    assert ranks_sharing_processors({**slurm, "SLURM_NODEID": "0"}) == 1
    assert ranks_sharing_processors(mpirun) == 6, "it may use more than its sixth"
    assert ranks_sharing_processors({**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}) == 4, "torchrun binds nobody"


def initialised(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    """As if torch.distributed were; torch itself is not needed."""
    answers = {"is_available": True, "is_initialized": True, "get_rank": rank, "get_world_size": world}
    group: Any = SimpleNamespace(**{name: lambda answer=answer: answer for name, answer in answers.items()})
    monkeypatch.setitem(sys.modules, "torch.distributed", group)


def test_a_rank_that_was_found_too_early_is_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = cluster.dataset(columns=["id"])
    early, told = forebay.Loader(ds, batch_size=10), forebay.Loader(ds, batch_size=10, rank=0, world=1)
    assert next(iter(early)).step == 0
    early.set_epoch(0)
    initialised(monkeypatch, 1, 2)
    advice = (
        r"made as rank 0 of 1 \(no launcher: one process\), but torch.distributed, initialised since, has rank 1 of 2: make it "
        r"after init_process_group\(\) \(in Lightning in train_dataloader\(\), .* or pass rank= and world="
    )
    for _ in range(2):
        with pytest.raises(forebay.InvalidError, match=advice):
            iter(early)
    # Ranks that are told may share their data.
    assert next(iter(told)).step == 0
    later = forebay.Loader(ds, batch_size=10)
    assert (later.rank, later.world) == (1, 2) and next(iter(later)).step == 0
    initialised(monkeypatch, 0, 1)
    assert next(iter(early)).step == 0


def test_it_is_said_in_the_log(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.INFO, "forebay"):
        loader = forebay.Loader(cluster.dataset(), batch_size=10)
    assert (loader.rank, loader.world, loader.global_batch) == (1, 4, 40)
    assert "rank 1 of 4 (torchrun: RANK, WORLD_SIZE)" in caplog.text
