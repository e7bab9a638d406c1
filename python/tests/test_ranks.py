"""Who says which rank this process is."""

from __future__ import annotations

import logging

import pytest
from conftest import Cluster

import forebay
from forebay._ranks import rank_and_world

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


def test_it_is_said_in_the_log(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.INFO, "forebay"):
        loader = forebay.Loader(cluster.dataset(), batch_size=10)
    assert (loader.rank, loader.world, loader.global_batch) == (1, 4, 40)
    assert "rank 1 of 4 (torchrun: RANK, WORLD_SIZE)" in caplog.text
