"""The part that all peers share: the job that they are given, the consumer of their batches, and the report.

A peer is a script that calls `run` with a function that yields the batches of an epoch, and one that goes on in the middle
of an epoch, if the peer can. A batch is a dict of contiguous
numpy arrays or tensors of the processor: `x` of [rows, 3136] bytes; `f00` to `f37`, `id` and `label`; or `b`, the bytes
of all rows, with `b_ends`, where each row ends.

The consumer reads the first byte of each array, and sums one column, so that rows which were left out, or came twice,
are found: the last byte of each row of `x`, `id`, and of `b` the last byte and the length of each row. Forebay's reader
has the same consumer.
"""

import json
import os
import pickle
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


# What a peer has started and must stop.
at_end: list[Callable[[], None]] = []

# Processes whose work is a peer's too, besides its children.
servers: list[int] = []


class Cannot(Exception):
    """The peer cannot do what the job asks, and why."""


@dataclass(eq=False)  # Hashed as the one object that it is.
class Job:
    """What the benchmark asks for."""

    shape: str
    batch_rows: int
    epochs: int
    seed: int
    shuffle: bool
    window: int  # Row groups that are permuted together.
    workers: int
    files: list[str]  # The local copy.
    keys: list[str]  # The same files in S3.
    source: str  # "local", "s3" or "nginx": where epochs are read from.
    bucket: str
    endpoint: str
    region: str
    access_key: str
    secret_key: str
    scratch: str  # A folder of this peer alone, which stays from one process to the next.
    convert: bool = False
    node: int = 0  # The process of our node, its address, and what it has: for our own package.
    node_endpoint: str = ""
    uri: str = ""
    resume: str = ""  # "save" reads to the middle of an epoch and keeps the state; "go" goes on from there.
    middle: int = 0  # Rows before the state.

    def share(self, groups: int) -> int:
        """A worker's share of the row groups that are permuted together."""
        return max(1, groups // max(1, self.workers))


def run(
    epochs: Callable[[Job], Callable[[int], Iterator[dict]]],
    convert: Callable[[Job], int] | None = None,
    resume: Callable[[Job, object], tuple[Iterator[dict], Callable[[], object]]] | str = "",
) -> None:
    """Does the job in the first argument and prints the report. `epochs` makes everything ready and returns the function
    that yields the batches of an epoch, counted from 0. `convert` writes the peer's own format and returns its bytes.
    `resume` makes everything ready to go on from a state, or, from None, at the first epoch's beginning; it returns the
    batches that come, and what gives the state after the last one. Or it says why the peer cannot."""
    job = Job(**json.loads(sys.argv[1]))
    try:
        if job.convert:
            report = converted(job, convert)
        elif job.resume:
            report = resumed(job, resume)
        else:
            report = {"epochs": measured(job, epochs), "peak_mb": peak_mb(job)}
    except Cannot as why:
        report = {"cannot": str(why)}
    finally:
        for stop in at_end:
            stop()
    print(json.dumps(report), flush=True)
    # Threads and workers of some peers keep the interpreter from ending.
    os._exit(0)


def measured(job: Job, epochs) -> list[dict]:
    epoch_of = epochs(job)
    found = []
    for epoch in range(job.epochs):
        cpu, began = cpu_s(), time.perf_counter()
        rows = checksum = 0
        first, consumer = None, 0.0
        for batch in epoch_of(epoch):
            came = time.perf_counter()
            if first is None:
                first = came - began
            count, summed = consume(job.shape, batch)
            consumer += time.perf_counter() - came
            rows += count
            checksum += summed
        seconds = time.perf_counter() - began
        found.append(
            {
                "rows": rows,
                "checksum": checksum % 2**64,
                "seconds": seconds,
                "consumer_s": consumer,
                "cpu_s": cpu_s() - cpu,
                "first_batch_ms": 1e3 * (seconds if first is None else first),
            }
        )
    return found


def resumed(job: Job, resume) -> dict:
    """Reads an epoch to its middle and keeps the state; or goes on from there, and says when the first batch came."""
    if isinstance(resume, str):
        raise Cannot(resume or "it has no state")
    kept = Path(job.scratch) / f"state.{job.shuffle}.{job.workers}"
    state = pickle.loads(kept.read_bytes()) if job.resume == "go" else None
    rows = checksum = 0
    first = None
    began = time.perf_counter()
    batches, state_now = resume(job, state)
    for batch in batches:
        if first is None:
            first = time.perf_counter() - began
        count, summed = consume(job.shape, batch)
        rows += count
        checksum += summed
        if job.resume == "save" and rows >= job.middle:
            kept.write_bytes(pickle.dumps(state_now()))
            break
    return {"rows": rows, "checksum": checksum % 2**64, "seconds": first or 0.0}


def converted(job: Job, convert) -> dict:
    cpu, began = cpu_s(), time.perf_counter()
    stored = convert(job) if convert else 0
    return {"seconds": time.perf_counter() - began, "cpu_s": cpu_s() - cpu, "bytes": stored}


def consume(shape: str, batch: dict) -> tuple[int, int]:
    """Touches a batch. Returns its rows and what they add to the checksum."""
    for array in batch.values():
        array.reshape(-1)[0].item()
    if shape == "X":
        return len(batch["x"]), int(batch["x"][:, -1].sum(dtype=wide(batch["x"])))
    if shape == "T":
        return len(batch["id"]), int(batch["id"].sum())
    ends, data = batch["b_ends"], batch["b"]
    assert int(ends[-1]) == len(data), "a batch has the bytes of its rows"
    return len(ends), int(ends[-1]) + int(data[ends - 1].sum(dtype=wide(data)))


def wide(array):
    """The type that sums of bytes have: of numpy or of torch, whichever made the array."""
    package = sys.modules[type(array).__module__.partition(".")[0]]
    return package.int64


def cpu_s() -> float:
    """Processor time of this process, its children, those that have ended too, and its servers."""
    used = sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    others = [*descendants(os.getpid()), *servers]
    return used + sum(ticks(other) for other in others) / os.sysconf("SC_CLK_TCK")


def peak_mb(job: Job) -> float:
    """The greatest resident memory of this process, that of its servers, and that of its children: of those that still run
    or, if that is more, as much for each worker as the greatest one that has ended. Memory that processes share counts in
    each."""
    alive = sum(high_water_kb(child) for child in descendants(os.getpid()))
    ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * job.workers
    served = sum(map(high_water_kb, servers))
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + max(alive, ended) + served) * 1024 / 1e6


def descendants(pid: int) -> list[int]:
    found = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = [int(child) for child in (thread / "children").read_text().split()]
        except OSError:
            continue
        found += children + [below for child in children for below in descendants(child)]
    return found


def ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[11:15]))


def high_water_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
