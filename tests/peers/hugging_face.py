"""Hugging Face `datasets`, streaming: tables in order, or shuffled by its buffer of rows. That buffer holds rows as
Python objects, so it is of 10,000 rows, or 1,000 of B, not of 16 row groups; its shuffle is a weaker one."""

import numpy as np
from datasets import load_dataset

from consumer import Job, run
from row_groups import arrays

BUFFER_ROWS = {"X": 10_000, "T": 10_000, "B": 1_000}


def streams(job: Job):
    """In order as tables, and shuffled by a buffer, as a stream and what makes a batch of what it yields."""
    files, options = job.files, None
    if job.source == "s3":
        files = [f"s3://{job.bucket}/{key}" for key in job.keys]
        client = {"endpoint_url": job.endpoint, "region_name": job.region}
        options = {"key": job.access_key, "secret": job.secret_key, "client_kwargs": client}
    stream = load_dataset("parquet", data_files=files, streaming=True, split="train", storage_options=options)
    if not job.shuffle:
        return stream.with_format("arrow"), arrays
    # As bytes of numpy, values would lose zeros at their ends.
    rows = stream if job.shape == "B" else stream.with_format("numpy")
    return rows.shuffle(seed=job.seed, buffer_size=BUFFER_ROWS[job.shape]), collated


def epochs(job: Job):
    stream, batch_of = streams(job)

    def epoch(number):
        if job.shuffle:
            stream.set_epoch(number)
        for rows in stream.iter(batch_size=job.batch_rows):
            yield batch_of(job.shape, rows)

    return epoch


def resume(job: Job, state):
    """Its state says how far a file was read; rows that the buffer held then do not come again."""
    stream, batch_of = streams(job)
    if state is not None:
        stream.load_state_dict(state)
    return (batch_of(job.shape, rows) for rows in stream.iter(batch_size=job.batch_rows)), stream.state_dict


def collated(shape: str, rows: dict) -> dict:
    if shape == "X":
        return {"x": np.asarray(rows["x"], np.uint8)}
    if shape == "T":
        return {name: np.asarray(v, np.float32 if name.startswith("f") else np.int64) for name, v in rows.items()}
    values = rows["b"]
    return {"b": np.frombuffer(b"".join(values), np.uint8), "b_ends": np.cumsum([len(value) for value in values])}


run(epochs, resume=resume)
