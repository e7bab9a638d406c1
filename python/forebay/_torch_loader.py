"""Batches as dicts of torch tensors, and their loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, Unpack, overload

import torch
from torch.utils.dlpack import from_dlpack

import forebay
from forebay._dataset import Dataset
from forebay._loader import BatchLoader
from forebay._run import RunOptions
from forebay._tensors import Filler, Tensors

T = TypeVar("T")


class Batch(dict[str, Any]):
    """One rank's rows of a step: columns by name.

    Numbers, times and booleans are tensors of `[rows]`, lists of one length `[rows, n]`, binaries of one length
    `[rows, bytes]` of uint8, structs dicts, strings and binaries lists. Tensors of numbers share the loader's memory,
    which belongs to this batch alone: they may be written to, and stay as they are for as long as they are kept.
    """

    epoch: int
    """The epoch, from 0."""
    step: int
    """Counted from the epoch's beginning."""
    sample_ids: torch.Tensor
    """`[rows]` of int64: the number of each row in the dataset, in file order."""
    mask: torch.Tensor | None
    """`[rows]` of bool, False for padding; None when no row is padding."""


class Loader(BatchLoader[T]):
    """One rank's batches, epoch after epoch: a plain iterable with the state of a training run.

    `nulls` and `ragged` say what becomes of nulls and of lists of different lengths: `forebay.torch.TensorOptions`. All
    other arguments are those of `forebay.Loader`; `transform` gets a `Batch`.

    Neither a `DataLoader` nor an `IterableDataset`, and not to be wrapped in one: there are no worker processes, and
    Lightning, accelerate and others leave it alone.
    """

    @overload
    def __init__(
        self: Loader[Batch],
        dataset: Dataset | str,
        *,
        transform: None = None,
        threads: int = 2,
        prefetch: int = 4,
        nulls: Mapping[str, Filler] | None = None,
        ragged: Literal["list", "pad"] | None = None,
        **options: Unpack[RunOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        dataset: Dataset | str,
        *,
        transform: Callable[[Batch], T],
        threads: int = 2,
        prefetch: int = 4,
        nulls: Mapping[str, Filler] | None = None,
        ragged: Literal["list", "pad"] | None = None,
        **options: Unpack[RunOptions],
    ) -> None: ...
    def __init__(
        self,
        dataset: Dataset | str,
        *,
        transform: Callable[[Batch], T] | None = None,
        threads: int = 2,
        prefetch: int = 4,
        nulls: Mapping[str, Filler] | None = None,
        ragged: Literal["list", "pad"] | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__(dataset, transform=transform, threads=threads, prefetch=prefetch, **options)
        self._tensors = Tensors(self.data.schema, nulls=nulls, ragged=ragged)

    def _convert(self, batch: forebay.Batch) -> Batch:
        tensors = Batch(self._tensors.columns(batch))
        tensors.epoch, tensors.step = batch.epoch, batch.step
        tensors.sample_ids = from_dlpack(batch.sample_ids)
        mask = batch.mask
        tensors.mask = None if mask is None else from_dlpack(mask)
        return tensors
