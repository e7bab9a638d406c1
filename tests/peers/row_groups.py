"""Row groups of Parquet as numpy arrays, and batches of them: in file order, or permuted some row groups at a time.

Written as one would write a loader by hand who knows pyarrow well: files are mapped, row groups are decoded by as many
threads as there are processors, and the next ones while a batch is used.
"""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from consumer import Job


def arrays(shape: str, table: pa.Table | pa.RecordBatch) -> dict[str, np.ndarray]:
    """The columns as contiguous arrays; nothing is copied where the column is in one piece."""
    if shape == "X":
        column = whole(table.column("x"))
        size = pa.types.is_fixed_size_list(column.type) and column.type.list_size
        values = column.flatten().to_numpy()
        return {"x": values.reshape(-1, size or len(values) // max(1, len(column)))}
    if shape == "T":
        return {name: whole(table.column(name)).to_numpy(zero_copy_only=False) for name in table.schema.names}
    column = whole(table.column("b"))
    width = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    _, offsets, data = column.buffers()
    offsets = np.frombuffer(offsets, width)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    return {"b": np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]], "b_ends": offsets[1:] - offsets[0]}


def whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def cut(shape: str, columns: dict, start: int, stop: int) -> dict:
    """The rows from `start` to `stop`."""
    if shape != "B":
        return {name: values[start:stop] for name, values in columns.items()}
    ends = columns["b_ends"]
    first = ends[start - 1] if start else 0
    return {"b": columns["b"][first : ends[stop - 1]], "b_ends": ends[start:stop] - first}


def batches(job: Job, columns: dict) -> Iterator[dict]:
    """Batches of rows that lie in order."""
    rows = len(columns["b_ends"] if job.shape == "B" else next(iter(columns.values())))
    for start in range(0, rows, job.batch_rows):
        yield cut(job.shape, columns, start, min(rows, start + job.batch_rows))


class Files:
    """Parquet files that several threads read at once. `open_file` gives what pyarrow opens: a path or a file object."""

    def __init__(self, job: Job, names: list[str], open_file: Callable[[str], object], local: bool = True):
        self.job, self.names, self.open_file, self.local = job, names, open_file, local
        self.footers = [self.open(name).metadata for name in names]
        self.opened = threading.local()

    def open(self, name, metadata=None) -> pq.ParquetFile:
        return pq.ParquetFile(
            self.open_file(name), metadata=metadata, memory_map=self.local, pre_buffer=not self.local
        )

    def groups(self) -> list[tuple[int, int]]:
        """All row groups, as numbers of file and row group, in order."""
        return [(at, group) for at, footer in enumerate(self.footers) for group in range(footer.num_row_groups)]

    def rows(self, group: tuple[int, int]) -> int:
        return self.footers[group[0]].row_group(group[1]).num_rows

    def read(self, group: tuple[int, int]) -> dict[str, np.ndarray]:
        files = self.opened.__dict__
        at, number = group
        if at not in files:
            files[at] = self.open(self.names[at], self.footers[at])
        return arrays(self.job.shape, files[at].read_row_group(number, use_threads=False))


def local_files(job: Job) -> Files:
    return Files(job, job.files, lambda path: path)


def in_order(job: Job, files: Files, groups: list[tuple[int, int]], threads: int) -> Iterator[dict]:
    """Batches in the order of the row groups; some are decoded ahead."""
    with ThreadPoolExecutor(threads) as pool:
        ahead = [pool.submit(files.read, group) for group in groups[: 2 * threads]]
        for group in groups[2 * threads :] + [None] * len(ahead):
            columns = ahead.pop(0).result()
            if group is not None:
                ahead.append(pool.submit(files.read, group))
            yield from batches(job, columns)


def permuted(
    job: Job, files: Files, groups: list[tuple[int, int]], epoch: int, threads: int, window: int
) -> Iterator[dict]:
    """Batches of rows permuted over `window` row groups, drawn again for each epoch."""
    dice = np.random.default_rng([job.seed, epoch])
    order = [groups[at] for at in dice.permutation(len(groups))]
    windows = [order[at : at + window] for at in range(0, len(order), window)]
    with ThreadPoolExecutor(threads) as pool:
        ahead = Window(job, files, windows[0], pool) if windows else None
        for at in range(len(windows)):
            now = ahead
            now.wait()
            ahead = Window(job, files, windows[at + 1], pool) if at + 1 < len(windows) else None
            order = dice.permutation(now.rows)
            for start in range(0, now.rows, job.batch_rows):
                yield now.take(order[start : start + job.batch_rows])


class Window:
    """Row groups that are decoded into the same arrays by the threads of a pool."""

    def __init__(self, job: Job, files: Files, groups: list[tuple[int, int]], pool: ThreadPoolExecutor):
        self.shape, self.files = job.shape, files
        counts = [files.rows(group) for group in groups]
        self.starts = np.cumsum([0, *counts])
        self.rows = int(self.starts[-1])
        self.columns: dict[str, np.ndarray] = {}
        self.parts: list[dict | None] = [None] * len(groups)
        self.lock = threading.Lock()
        self.reads = [pool.submit(self.fill, at, group) for at, group in enumerate(groups)]

    def wait(self):
        for read in self.reads:
            read.result()

    def fill(self, at: int, group: tuple[int, int]):
        part = self.files.read(group)
        if self.shape == "B":
            self.parts[at] = part
            return
        with self.lock:
            if not self.columns:
                self.columns = {
                    name: np.empty((self.rows, *values.shape[1:]), values.dtype) for name, values in part.items()
                }
        for name, values in part.items():
            self.columns[name][self.starts[at] : self.starts[at + 1]] = values

    def take(self, rows: np.ndarray) -> dict:
        """Some rows, in this order."""
        if self.shape != "B":
            return {name: values[rows] for name, values in self.columns.items()}
        at = np.searchsorted(self.starts, rows, side="right") - 1
        values = [self.value(part, row) for part, row in zip(at, rows - self.starts[at])]
        return {"b": np.concatenate(values), "b_ends": np.cumsum([len(value) for value in values])}

    def value(self, part: int, row: int) -> np.ndarray:
        columns = self.parts[part]
        ends = columns["b_ends"]
        return columns["b"][ends[row - 1] if row else 0 : ends[row]]


def processors() -> int:
    return len(os.sched_getaffinity(0))
