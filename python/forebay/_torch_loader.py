"""Batches as dicts of torch tensors, and their loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, Unpack, overload

import torch

import forebay
from forebay._dataset import Dataset, DatasetName
from forebay._device import Device, moved
from forebay._images import Image
from forebay._loader import BatchLoader
from forebay._run import RunOptions
from forebay._tensors import Filler, Place, TensorOptions, Tensors, shared

T = TypeVar("T")

# Only images ask where they are.
_NOWHERE = Place()


class Batch(dict[str, Any]):
    """One rank's rows of a step: columns by name.

    Numbers, times and booleans are tensors of `[rows]`, lists of one length `[rows, n]`, Arrow's tensors of one shape
    (`arrow.fixed_shape_tensor`) `[rows, *shape]`, binaries of one length `[rows, bytes]` of uint8, structs dicts, strings and
    binaries lists. Tensors of numbers share the loader's memory, which belongs to this batch alone: they may be written
    to, and stay as they are for as long as they are kept.
    """

    epoch: int
    """The epoch, from 0."""
    step: int
    """Counted from the epoch's beginning."""
    digest: str
    """The order digest of the rows, in hexadecimal digits; padding does not count."""
    sample_ids: torch.Tensor
    """`[rows]` of int64: the number of each row in the dataset, in file order."""
    mask: torch.Tensor | None
    """`[rows]` of bool, False for padding; None when no row is padding."""

    def to(self, device: str | int | torch.device, non_blocking: bool = False) -> Batch:
        """The same with its tensors and its mask on a device; `sample_ids` stay where they are. Lightning and accelerate
        move a batch by this. With `non_blocking` copies from pinned memory are only begun. Raises what torch raises."""
        batch: Batch = moved(self, device, non_blocking)
        return batch


class LoaderOptions(RunOptions, TensorOptions, total=False):
    """The keywords of loaders of tensors: those of a run, and of its tensors."""


class Loader(BatchLoader[T]):
    """One rank's batches, epoch after epoch: a plain iterable with the state of a training run.

    `nulls`, `ragged`, `binaries`, `images` and `decode_threads` say what becomes of columns that are no plain tensors:
    `forebay.torch.TensorOptions`. With `device` the batches arrive there, copied while the step before computes; what
    `transform` returns is copied then. All other arguments are those of `forebay.Loader`; `transform` gets a `Batch`.
    Images are decoded, and batches copied, ahead of the step, at most `prefetch` batches at a time, by `threads` threads.

    Neither a `DataLoader` nor an `IterableDataset`, and not to be wrapped in one: there are no worker processes, and
    Lightning, accelerate and others leave it alone.

    Raises what `forebay.Loader` raises. Making one also raises `InvalidError` for rules of columns that do not exist
    and for a `device` that is not there; iterating, for nulls without a rule, for lists of different lengths without `ragged`,
    for columns that have no form as tensors, and `CorruptError` for images that do not decode. Each names its column.
    """

    @overload
    def __init__(
        self: Loader[Batch],
        dataset: Dataset | DatasetName,
        *,
        transform: None = None,
        threads: int = 2,
        prefetch: int = 4,
        device: str | torch.device | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        dataset: Dataset | DatasetName,
        *,
        transform: Callable[[Batch], T],
        threads: int = 2,
        prefetch: int = 4,
        device: str | torch.device | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None: ...
    def __init__(
        self,
        dataset: Dataset | DatasetName,
        *,
        transform: Callable[[Batch], T] | None = None,
        threads: int = 2,
        prefetch: int = 4,
        device: str | torch.device | None = None,
        nulls: Mapping[str, Filler] | None = None,
        ragged: Literal["list", "pad", "raw"] | None = None,
        binaries: Literal["list", "views", "raw"] = "list",
        images: Mapping[str, Image] | None = None,
        decode_threads: int | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        self._device = None if device is None else Device(device)
        ahead = bool(images) or self._device is not None
        super().__init__(dataset, transform=transform, threads=threads, prefetch=prefetch, ahead=ahead, **options)
        if self._device is not None:
            self._cuda = self._device.cuda_index
        self._tensors = Tensors(
            self.data.schema,
            nulls=nulls,
            ragged=ragged,
            binaries=binaries,
            images=images,
            decode_threads=decode_threads,
        )

    def _convert(self, batch: forebay.Batch) -> Batch:
        place = _NOWHERE if self._tensors.images is None else Place(batch.first_ids(len(batch)), (self.seed, batch.epoch))
        tensors = Batch(self._tensors.columns(batch, place))
        tensors.epoch, tensors.step, tensors.digest = batch.epoch, batch.step, batch.digest
        tensors.sample_ids = shared(batch.sample_ids.__dlpack__())
        mask = batch.mask
        tensors.mask = None if mask is None else shared(mask.__dlpack__())
        return tensors

    def _transformed(self, batch: forebay.Batch) -> Any:
        made = super()._transformed(batch)
        return made if self._device is None else self._device.send(made)

    def _received(self, made: Any) -> Any:
        return made if self._device is None else self._device.receive(made)

    def close(self) -> None:
        """Ends the streams, and the threads of transforms and images. Batches that were handed out stay as they are. Any
        thread may call it: one that waits for a batch gets a `ClosedError`."""
        super().close()
        if self._device is not None:
            self._device.close()
        if self._tensors.images is not None:
            self._tensors.images.close()
