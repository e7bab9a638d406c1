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

    Iterating raises what iterating over the loader raises. Pickling it, as for worker processes, is a `TypeError`.
    """

    def __init__(self, loader: BatchLoader[T]) -> None:
        """Takes a `forebay.Loader` or `forebay.torch.Loader`, which nothing else may iterate over meanwhile."""
        super().__init__()
        self._loader = loader

    def __iter__(self) -> _Batches[T]:
        """The loader's next epoch, or one that goes on from a state by `set_state`."""
        return _Batches(self._loader)


class _Batches(grain.DatasetIterator[T], Generic[T]):
    """One iteration: an epoch of the loader."""

    def __init__(self, loader: BatchLoader[T]) -> None:
        super().__init__()
        self._loader = loader
        self._epoch: Iterator[T] | None = None

    def __next__(self) -> T:
        if self._epoch is None:
            self._epoch = iter(self._loader)
        return next(self._epoch)

    def get_state(self) -> dict[str, Any]:
        """The loader's `state_dict()`: after the batch that was given last, the same on every rank."""
        return {_LOADER: self._loader.state_dict()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from a state that `get_state` gave, on any number of ranks.

        Raises what `Loader.load_state_dict` raises.
        """
        self._loader.load_state_dict(state[_LOADER])
        self._epoch = None
