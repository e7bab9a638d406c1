"""LitData: its own chunks, converted from the Parquet before, read from a local copy with its shuffle."""

import os
from pathlib import Path

from consumer import Job, run
from rows import as_tensors, rows

# No telemetry and no look for a newer version: there is no way out.
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("LITDATA_DISABLE_VERSION_CHECK", "1")

from litdata import StreamingDataLoader, StreamingDataset  # noqa: E402
from litdata.streaming import Cache  # noqa: E402

CHUNK_BYTES = 64 << 20


def folder(job: Job) -> Path:
    return Path(job.scratch) / "chunks"


def convert(job: Job) -> int:
    """By its writer in one process, without the files that `optimize` passes between processes."""
    cache = Cache(str(folder(job)), chunk_bytes=CHUNK_BYTES)
    for at, row in enumerate(rows(job)):
        cache[at] = row
    cache.done()
    cache.merge()
    return sum(path.stat().st_size for path in folder(job).iterdir())


def loader(job: Job) -> StreamingDataLoader:
    dataset = StreamingDataset(str(folder(job)), shuffle=job.shuffle, seed=job.seed, drop_last=False)
    return StreamingDataLoader(
        dataset,
        batch_size=job.batch_rows,
        num_workers=job.workers,
        collate_fn=as_tensors,
        persistent_workers=job.workers > 0,
        drop_last=False,
    )


def epochs(job: Job):
    batches = loader(job)
    return lambda _: iter(batches)


def resume(job: Job, state):
    batches = loader(job)
    if state is not None:
        batches.load_state_dict(state)
    return iter(batches), batches.state_dict


run(epochs, convert, resume)
