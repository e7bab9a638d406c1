"""MosaicML Streaming: its own shards, converted from the Parquet before, read from a local copy with its shuffle."""

from pathlib import Path

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from torch.utils.data import DataLoader

from consumer import Job, run
from rows import FLOATS, as_tensors, rows

COLUMNS = {
    "X": {"x": "bytes"},
    "T": {"f": f"ndarray:float32:{FLOATS}", "i": "ndarray:int64:2"},
    "B": {"b": "bytes"},
}


def folder(job: Job) -> Path:
    return Path(job.scratch) / "shards"


def convert(job: Job) -> int:
    with MDSWriter(out=str(folder(job)), columns=COLUMNS[job.shape]) as writer:
        for row in rows(job):
            writer.write(row)
    return sum(path.stat().st_size for path in folder(job).iterdir())


def loader(job: Job, kind: type[DataLoader]) -> DataLoader:
    dataset = StreamingDataset(
        local=str(folder(job)), shuffle=job.shuffle, shuffle_seed=job.seed, batch_size=job.batch_rows
    )
    return kind(
        dataset,
        batch_size=job.batch_rows,
        num_workers=job.workers,
        collate_fn=as_tensors,
        persistent_workers=job.workers > 0,
    )


def epochs(job: Job):
    batches = loader(job, DataLoader)
    return lambda _: iter(batches)


def resume(job: Job, state):
    """By its own DataLoader, which counts the batches."""
    batches = loader(job, StreamingDataLoader)
    if state is not None:
        batches.load_state_dict(state)
    return iter(batches), batches.state_dict


run(epochs, convert, resume)
