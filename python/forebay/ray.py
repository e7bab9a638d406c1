"""A dataset as a source of Ray Data.

>>> import forebay, forebay.ray, ray  # doctest: +SKIP
>>> rows = ray.data.read_datasource(forebay.ray.Datasource(forebay.dataset("s3://bucket/train")))  # doctest: +SKIP

In Ray Train's training functions use `forebay.torch.Loader`: it asks `torch.distributed`, which Ray has set up there, for
rank and world, and keeps order and state exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import ray.data
from ray.data.block import BlockMetadata

from forebay._dataset import Dataset, rows_between

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Datasource"]


class Datasource(ray.data.Datasource):
    """The rows of a dataset, in file order within each task. Each task opens the dataset again, in this version.

    Tasks run anywhere in Ray's cluster, so the dataset names a cache that all its machines reach (or `direct=True`).

    A task raises what opening and reading the dataset raises: `ChangedError` if it has another version there,
    `RetryError` if its cache does not answer.
    """

    def __init__(self, dataset: Dataset) -> None:
        """Takes a dataset as `forebay.dataset` opened it; nothing is read yet."""
        super().__init__()
        self._dataset = dataset

    def get_name(self) -> str:
        """What Ray shows it as."""
        return "Forebay"

    def estimate_inmemory_data_size(self) -> int | None:
        """Bytes of all rows; None, as they depend on the columns that are read, and Ray measures them itself."""
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ray.data.ReadTask]:
        """Equal shares of the rows, at most `parallelism` of them and no more than the dataset has segments, as segments are
        cached as a whole. A task reads `per_task_row_limit` rows at most.

        Nothing is read for it. Raises `ClosedError` in a forked process.
        """
        rows = self._dataset.num_rows
        tasks = max(1, min(parallelism, self._dataset.num_segments))
        edges = [rows * task // tasks for task in range(tasks + 1)]
        limit = rows if per_task_row_limit is None else per_task_row_limit
        shares = [(start, min(stop, start + limit)) for start, stop in zip(edges, edges[1:], strict=False)]
        schema = self._dataset.head(0).schema
        return [
            ray.data.ReadTask(
                _reading(self._dataset, start, stop),
                BlockMetadata(num_rows=stop - start, size_bytes=None, input_files=None, exec_stats=None),
                schema=schema,
                per_task_row_limit=per_task_row_limit,
            )
            for start, stop in shares
        ]


def _reading(dataset: Dataset, start: int, stop: int) -> Callable[[], Iterator[pyarrow.Table]]:
    return lambda: rows_between(dataset, start, stop)
