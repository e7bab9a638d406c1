"""Which rank this process is, and of how many."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from forebay._errors import InvalidError

# Launchers' variables. Slurm's are those of a step: a batch script itself has SLURM_NTASKS too, and is one process.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Horovod", "HOROVOD_RANK", "HOROVOD_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI", "PMI_RANK", "PMI_SIZE"),
)


def rank_and_world(
    rank: int | None, world: int | None, environment: Mapping[str, str] = os.environ
) -> tuple[int, int, str]:
    """Rank, number of ranks, and who said so: arguments, torch.distributed, or the launcher's environment."""
    if rank is not None and world is not None:
        return rank, world, "arguments"
    if (rank, world) != (None, None):
        raise InvalidError("rank= and world= go together: pass both, or neither to take them from the launcher")
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size(), "torch.distributed"
    for launcher, of_rank, of_world in _LAUNCHERS:
        if of_rank in environment and of_world in environment:
            try:
                return int(environment[of_rank]), int(environment[of_world]), f"{launcher}: {of_rank}, {of_world}"
            except ValueError:
                said = f"{of_rank}={environment[of_rank]!r}, {of_world}={environment[of_world]!r}"
                raise InvalidError(f"{said} are no numbers: correct them, or pass rank= and world=") from None
    return 0, 1, "no launcher: one process"
