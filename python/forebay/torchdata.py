"""A loader as a source of torchdata.nodes.

>>> import forebay.torch, forebay.torchdata, torchdata.nodes  # doctest: +SKIP
>>> node = forebay.torchdata.Node(forebay.torch.Loader("s3://bucket/train", batch_size=256))  # doctest: +SKIP
>>> loader = torchdata.nodes.Loader(torchdata.nodes.Prefetcher(node, prefetch_factor=2))  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torchdata.nodes

from forebay._loader import BatchLoader

__all__ = ["Node"]

T = TypeVar("T")

_LOADER = "loader"


class Node(torchdata.nodes.BaseNode[T], Generic[T]):
    """Gives the batches of a loader, an epoch after each reset. Its state is the loader's, and it raises what the loader
    raises."""

    def __init__(self, loader: BatchLoader[T]) -> None:
        """Takes a `forebay.Loader` or `forebay.torch.Loader`, which nothing else may iterate over meanwhile."""
        super().__init__()
        self._loader = loader
        self._epoch: Iterator[T] | None = None

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begins the loader's next epoch, or goes on from a state that `get_state` gave, on any number of ranks. torchdata
        calls it before the first batch and after each epoch.

        Raises what `Loader.load_state_dict` raises, and `InvalidError` after the last of the loader's `epochs`.
        """
        super().reset(initial_state)
        if initial_state is not None:
            self._loader.load_state_dict(initial_state[_LOADER])
        self._epoch = iter(self._loader)

    def next(self) -> T:
        """The loader's next batch. Raises `StopIteration` at the epoch's end, and what iterating over the loader raises."""
        assert self._epoch is not None, "torchdata resets a node before it takes from it"
        return next(self._epoch)

    def get_state(self) -> dict[str, Any]:
        """The loader's `state_dict()`: after the batch that was given last, the same on every rank."""
        return {_LOADER: self._loader.state_dict()}
