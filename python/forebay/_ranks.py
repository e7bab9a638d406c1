"""Which rank this process is, and of how many."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from forebay._errors import InvalidError

_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Horovod", "HOROVOD_RANK", "HOROVOD_SIZE"),
)

# One of these may run within another, whose variables its processes inherit, all with the same rank: `mpirun` within a Slurm
# step, or `srun` beneath `mpirun`. The one of more processes is the inner one. Slurm's are those of a step: a batch script
# itself has SLURM_NTASKS too, and is one process.
_NESTED = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI", "PMI_RANK", "PMI_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)

_ARGUMENTS = "arguments"


class Rank(NamedTuple):
    """Which rank this process is, of how many, and who said so."""

    rank: int
    world: int
    said_by: str

    def check(self) -> None:
        """Raises `InvalidError` if torch.distributed was initialised meanwhile and says something else. Arguments are
        never wrong: ranks may share their data."""
        running = _running()
        if self.said_by == _ARGUMENTS or running is None or running == (self.rank, self.world):
            return
        raise InvalidError(
            f"the loader was made as rank {self.rank} of {self.world} ({self.said_by}), but torch.distributed, initialised since, "
            f"has rank {running[0]} of {running[1]}: make it after init_process_group() (in Lightning in train_dataloader(), or "
            "start the ranks by torchrun), or pass rank= and world="
        )


def rank_and_world(
    rank: int | None, world: int | None, environment: Mapping[str, str] = os.environ
) -> Rank:
    """What arguments say, else torch.distributed if it is initialised, else the launcher's environment."""
    if rank is not None and world is not None:
        return Rank(rank, world, _ARGUMENTS)
    if (rank, world) != (None, None):
        raise InvalidError("rank= and world= go together: pass both, or neither to take them from the launcher")
    running = _running()
    if running is not None:
        return Rank(*running, "torch.distributed")
    for names in _LAUNCHERS:
        found = _of_launcher(names, environment)
        if found is not None:
            return found
    nested = [found for names in _NESTED if (found := _of_launcher(names, environment)) is not None]
    return max(nested, key=lambda found: found.world, default=Rank(0, 1, "no launcher: one process"))


def _of_launcher(names: tuple[str, str, str], environment: Mapping[str, str]) -> Rank | None:
    launcher, of_rank, of_world = names
    if of_rank not in environment or of_world not in environment:
        return None
    try:
        return Rank(int(environment[of_rank]), int(environment[of_world]), f"{launcher}: {of_rank}, {of_world}")
    except ValueError:
        said = f"{of_rank}={environment[of_rank]!r}, {of_world}={environment[of_world]!r}"
        raise InvalidError(f"{said} are no numbers: correct them, or pass rank= and world=") from None


def _running() -> tuple[int, int] | None:
    """Rank and number of ranks of torch.distributed, if it is initialised. Torch is not imported for that."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()
