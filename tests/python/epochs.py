"""A measured process of `make bench-python`: reads epochs into dicts of tensors. Its argument is the job in JSON.

Like the ranks of `make bench-warm` it makes everything ready, says so in a line, waits for a line, runs, and leaves its
report in another line.
"""

import json
import statistics
import sys
import time
import zlib
from pathlib import Path

import forebay.torch

MASK = (1 << 64) - 1


def main(job):
    dataset = forebay.dataset(job["uri"], endpoint=job["endpoint"])
    options = {"seed": job["seed"], "shuffle": job["window"], "batch_size": job["batch_rows"], "ending": "pad"}
    options["binaries"] = job["binaries"]

    def loader(epoch):
        loader = forebay.torch.Loader(dataset, epochs=epoch + 1, rank=0, world=1, **options)
        loader.set_epoch(epoch)
        return loader

    if job["what"] == "steps":
        report_steps(dataset, options | {"ending": "exact"}, job["state"])
        return
    with loader(job["epoch"] - 1) as warming:
        checksum = sum(checksum_of(job["shape"], batch) for batch in warming) & MASK
    if job["what"] == "handover":
        report({"handover_us": handover_us(dataset, options)})
    elif job["what"] == "memory":
        report(memory_growth(dataset, options, job["epochs"]))
    else:
        print(flush=True)
        assert sys.stdin.readline(), "the benchmark has gone"
        report(measured(loader, job["epoch"]) | {"checksum": checksum})


def report(found):
    print(json.dumps(found), flush=True)


def measured(loader_of, epoch):
    began, cpu = now(time.CLOCK_MONOTONIC), now(time.CLOCK_PROCESS_CPUTIME_ID)
    samples, first = 0, None
    with loader_of(epoch) as loader:
        for batch in loader:
            first = first or now(time.CLOCK_MONOTONIC)
            samples += len(batch.sample_ids) if batch.mask is None else int(batch.mask.sum())
        ended, cpu_ended = now(time.CLOCK_MONOTONIC), now(time.CLOCK_PROCESS_CPUTIME_ID)
        digest = loader.digest
    span = {"began_ns": began, "ended_ns": ended, "cpu_s": (cpu_ended - cpu) / 1e9}
    return {"span": span, "samples": samples, "first_batch_ms": (first - began) / 1e6, "digest": digest}


def handover_us(dataset, options):
    """The time that a batch takes from where it lies ready to the loop: the median of 40."""
    with forebay.torch.Loader(dataset, rank=0, world=1, **options) as loader:
        batches = all_batches(loader)
        next(batches)
        # Until batches fill what may be read ahead.
        time.sleep(2)
        times = []
        for _ in range(40):
            began = time.perf_counter_ns()
            next(batches)
            times.append((time.perf_counter_ns() - began) / 1e3)
    return statistics.median(times)


def all_batches(loader):
    while True:
        yield from loader


def report_steps(dataset, options, state):
    """Goes on from a state, if there is one, without end. Says of each step of X which rows it has and their sum, and the
    state after it."""
    with forebay.torch.Loader(dataset, rank=0, world=1, **options) as loader:
        if state is not None:
            loader.load_state_dict(state)
        for batch in all_batches(loader):
            crc32 = zlib.crc32(batch["x"].numpy(), zlib.crc32(batch.sample_ids.numpy()))
            read = {"epoch": batch.epoch, "step": batch.step, "rows": len(batch.sample_ids), "crc32": crc32}
            report({"read": read, "state": loader.state_dict()})


def memory_growth(dataset, options, epochs):
    """Growth of the memory from the second epoch on, while four batches are kept: of all resident memory, and without
    the files of the node that are mapped, which come and go with each epoch's stream."""
    resident, own, kept = [], [], []
    with forebay.torch.Loader(dataset, rank=0, world=1, **options) as loader:
        for _ in range(epochs):
            for batch in loader:
                if batch.step % 16 == 0:
                    kept = [*kept[-3:], batch]
            memory = resident_mb()
            resident.append(sum(memory.values()))
            own.append(memory["RssAnon"] + memory["RssShmem"])
    return {"rss_growth_mb": max(resident[2:]) - resident[1], "own_growth_mb": max(own[2:]) - own[1]}


def resident_mb():
    """Resident memory by kind, as proc(5) has it in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kinds = (line.split() for line in lines if line.startswith(("RssAnon", "RssFile", "RssShmem")))
    return {kind.rstrip(":"): int(kb) * 1024 / 1e6 for kind, kb, _ in kinds}


def checksum_of(shape, batch):
    """The last byte of each row of X; the ids of T; the length and the last byte of each row of B."""
    rows = range(len(batch.sample_ids)) if batch.mask is None else batch.mask.nonzero().flatten().tolist()
    if shape == "X":
        return int(batch["x"][list(rows), -1].long().sum())
    if shape == "T":
        return int(batch["id"][list(rows)].sum())
    if isinstance(batch["b"], forebay.torch.Ragged):
        values, offsets = batch["b"]
        ends = offsets[1:][list(rows)]
        return int((ends - offsets[:-1][list(rows)]).sum() + values[ends - 1].long().sum())
    return sum(len(batch["b"][row]) + batch["b"][row][-1] for row in rows)


def now(clock):
    return time.clock_gettime_ns(clock)


main(json.loads(sys.argv[1]))
