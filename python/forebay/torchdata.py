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
    """Gives the batches of a loader, an epoch after each reset. Its state is the loader's."""

    def __init__(self, loader: BatchLoader[T]) -> None:
        super().__init__()
        self._loader = loader
        self._epoch: Iterator[T] | None = None

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        if initial_state is not None:
            self._loader.load_state_dict(initial_state[_LOADER])
        self._epoch = iter(self._loader)

    def next(self) -> T:
        assert self._epoch is not None, "torchdata resets a node before it takes from it"
        return next(self._epoch)

    def get_state(self) -> dict[str, Any]:
        return {_LOADER: self._loader.state_dict()}
