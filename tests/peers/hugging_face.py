"""Hugging Face `datasets`, streaming: tables in order, or shuffled by its buffer of rows. That buffer holds rows as
Python objects, so it is of 10,000 rows, or 1,000 of B, not of 16 row groups; its shuffle is a weaker one."""

import numpy as np
from datasets import load_dataset

from consumer import Job, run
from row_groups import arrays

BUFFER_ROWS = {"X": 10_000, "T": 10_000, "B": 1_000}


def epochs(job: Job):
    files, options = job.files, None
    if job.source == "s3":
        files = [f"s3://{job.bucket}/{key}" for key in job.keys]
        client = {"endpoint_url": job.endpoint, "region_name": job.region}
        options = {"key": job.access_key, "secret": job.secret_key, "client_kwargs": client}
    stream = load_dataset("parquet", data_files=files, streaming=True, split="train", storage_options=options)

    def in_order(_):
        for table in stream.with_format("arrow").iter(batch_size=job.batch_rows):
            yield arrays(job.shape, table)

    # As bytes of numpy, values would lose zeros at their ends.
    rows = stream if job.shape == "B" else stream.with_format("numpy")
    shuffled = rows.shuffle(seed=job.seed, buffer_size=BUFFER_ROWS[job.shape])

    def in_buffer(number):
        shuffled.set_epoch(number)
        for rows in shuffled.iter(batch_size=job.batch_rows):
            yield collated(job.shape, rows)

    return in_buffer if job.shuffle else in_order


def collated(shape: str, rows: dict) -> dict:
    if shape == "X":
        return {"x": np.asarray(rows["x"], np.uint8)}
    if shape == "T":
        return {name: np.asarray(v, np.float32 if name.startswith("f") else np.int64) for name, v in rows.items()}
    values = rows["b"]
    return {"b": np.frombuffer(b"".join(values), np.uint8), "b_ends": np.cumsum([len(value) for value in values])}


run(epochs)
