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

# Of each launcher, where it says how many of its ranks run on this machine; Slurm says it of all machines, as in "4(x2),3".
_SLURM_TASKS = "SLURM_STEP_TASKS_PER_NODE"
_LOCAL = {
    "torchrun": "LOCAL_WORLD_SIZE",
    "Horovod": "HOROVOD_LOCAL_SIZE",
    "Open MPI": "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI": "MPI_LOCALNRANKS",
    "Slurm": _SLURM_TASKS,
}

# Those that may bind each rank to processors of its own, which it shares with no other rank then.
_BINDING = ("Open MPI", "MPI", "Slurm")

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
    launched = _launched(environment)
    return Rank(0, 1, "no launcher: one process") if launched is None else launched[1]


def ranks_sharing_processors(environment: Mapping[str, str] = os.environ) -> int:
    """How many ranks share the processors that this process may use: this machine's, as the launcher says that says which
    rank this process is. 1 if none says it, or if the launcher has given each rank processors of its own."""
    launched = _launched(environment)
    launcher = "torchrun" if launched is None else launched[0]
    name = _LOCAL[launcher]
    said = environment.get(name)
    if not said:
        return 1
    try:
        ranks = _slurm_tasks(said, environment) if name == _SLURM_TASKS else int(said)
    except ValueError:
        raise InvalidError(f"{name}={said!r} is no number of ranks: correct it, or pass decode_threads=") from None
    is_bound = launcher in _BINDING and len(os.sched_getaffinity(0)) * ranks <= (os.cpu_count() or 1)
    return 1 if is_bound else max(ranks, 1)


def _slurm_tasks(said: str, environment: Mapping[str, str]) -> int:
    """This machine's of the tasks that a step has on each of its machines."""
    tasks: list[int] = []
    for part in said.split(","):
        count, _, machines = part.rstrip(")").partition("(x")
        tasks += [int(count)] * int(machines or 1)
    machine = int(environment.get("SLURM_NODEID", 0))
    # One that the step does not have: where that is so, other ranks may be on any of them.
    return tasks[machine] if 0 <= machine < len(tasks) else max(tasks)


def _launched(environment: Mapping[str, str]) -> tuple[str, Rank] | None:
    """The innermost launcher, and the rank that it says."""
    for names in _LAUNCHERS:
        found = _of_launcher(names, environment)
        if found is not None:
            return names[0], found
    nested = [(names[0], found) for names in _NESTED if (found := _of_launcher(names, environment)) is not None]
    return max(nested, key=lambda launched: launched[1].world, default=None)


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
