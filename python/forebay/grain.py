"""A loader as a source of Grain's pipelines.

>>> import forebay, forebay.grain, numpy  # doctest: +SKIP
>>> loader = forebay.Loader("s3://bucket/train", batch_size=256, transform=lambda b: numpy.from_dlpack(b["x"]))  # doctest: +SKIP
>>> for x in forebay.grain.IterDataset(loader).map(f):  # doctest: +SKIP
...     step(x)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import grain

from forebay._loader import BatchLoader

__all__ = ["IterDataset"]

T = TypeVar("T")

_LOADER = "loader"


class IterDataset(grain.IterDataset[T], Generic[T]):
    """The batches of a loader, an epoch in each iteration; its iterators' state is the loader's.

    One iteration at a time, in threads but not in worker processes: rows arrive decoded, and a loader cannot be pickled. A
    `forebay.torch.MapDataset` is a source of `grain.MapDataset.source` as it is.
    """

    def __init__(self, loader: BatchLoader[T]) -> None:
        super().__init__()
        self._loader = loader

    def __iter__(self) -> _Batches[T]:
        return _Batches(self._loader)


class _Batches(grain.DatasetIterator[T], Generic[T]):
    def __init__(self, loader: BatchLoader[T]) -> None:
        super().__init__()
        self._loader = loader
        self._epoch: Iterator[T] | None = None

    def __next__(self) -> T:
        if self._epoch is None:
            self._epoch = iter(self._loader)
        return next(self._epoch)

    def get_state(self) -> dict[str, Any]:
        return {_LOADER: self._loader.state_dict()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state[_LOADER])
        self._epoch = None
