"""Rows as the formats that store row by row take them, and their batches.

A row of T is two arrays, its 38 floats and its 2 integers: 40 values by themselves would cost these formats several
times as much. Its batch is a dict of two matrices."""

from collections.abc import Iterator

import numpy as np

from consumer import Job
from row_groups import local_files

FLOATS = 38


def rows(job: Job) -> Iterator[dict]:
    """Every row of the local copy, in order."""
    files = local_files(job)
    for group in files.groups():
        columns = files.read(group)
        if job.shape == "X":
            yield from ({"x": row.tobytes()} for row in columns["x"])
        elif job.shape == "T":
            floats = np.stack([columns[f"f{at:02}"] for at in range(FLOATS)], axis=1)
            integers = np.stack([columns["id"], columns["label"]], axis=1)
            yield from ({"f": f, "i": i} for f, i in zip(floats, integers))
        else:
            ends, start = columns["b_ends"], 0
            for end in ends:
                yield {"b": columns["b"][start:end].tobytes()}
                start = end


def collate(samples: list[dict]) -> dict:
    """A batch of rows."""
    if "f" in samples[0]:
        integers = np.stack([np.asarray(sample["i"]) for sample in samples])
        floats = np.stack([np.asarray(sample["f"]) for sample in samples])
        return {"f": floats, "id": np.ascontiguousarray(integers[:, 0]), "label": np.ascontiguousarray(integers[:, 1])}
    if "x" in samples[0]:
        joined = np.frombuffer(b"".join(sample["x"] for sample in samples), np.uint8)
        return {"x": joined.reshape(len(samples), -1)}
    values = [sample["b"] for sample in samples]
    # First what has an entry for each row: Mosaic's loader counts the rows of a batch by it.
    return {"b_ends": np.cumsum([len(value) for value in values]), "b": np.frombuffer(b"".join(values), np.uint8)}


def as_tensors(samples: list[dict]) -> dict:
    """A batch of rows as tensors, which workers hand over by shared memory."""
    import torch

    return {name: torch.from_numpy(values) for name, values in collate(samples).items()}
