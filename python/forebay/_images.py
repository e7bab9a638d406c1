"""Columns of images as tensors: decoded and varied in Rust, by the very code of `forebay-train`."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch.utils.dlpack import from_dlpack

from forebay._errors import InvalidError
from forebay._forebay import Column, ImageDecoder, ImageForm, Schema
from forebay._numbers import whole
from forebay._ranks import ranks_sharing_processors

_BYTE = 255.0


@dataclass(frozen=True)
class Image:
    """What becomes of a column of images: a tensor of `[rows, channels, size, size]`.

    The column holds JPEG or PNG files, is a struct with these in its field `bytes`, as Hugging Face's datasets have
    them, or holds raw pixels in lists of uint8 of one length. What a run sees of an image follows from its seed, the epoch
    and the sample's number, whatever the rank, the batch or the thread, and `forebay-train` sees the same.

    Making one raises `InvalidError` for a `dtype`, `mean` or `std` that makes no sense; a loader raises it for settings that
    do not fit the column.
    """

    size: int | None = None
    """Side of the square, in pixels, at most 4096; unset, 224, or a square raw image's own side."""
    _: KW_ONLY
    augment: Literal["crop", "shift", "flip"] | None = None
    """"crop": a part of the image, at least `crop_share` of it, resized. "shift": a square of 7/8 of the shorter side, at a
    random place in the middle square. "flip": the middle square. Each is mirrored half of the time. None: the middle
    square, for an evaluation."""
    crop_share: float = 0.08
    """Least share of the area that "crop" leaves of an image."""
    grey: bool = False
    """One channel instead of three."""
    shape: tuple[int, ...] | None = None
    """Of raw pixels: (height, width, channels), or (channels, height, width) for one channel after the other; unset, a
    square with the channels last."""
    dtype: torch.dtype = torch.uint8
    """uint8 for values from 0 to 255, or a type of floats for values from 0 to 1."""
    mean: Sequence[float] | None = None
    """With floats: subtracted from each channel's values of 0 to 1."""
    std: Sequence[float] | None = None
    """With floats: the values are divided by it after that."""

    def __post_init__(self) -> None:
        if self.dtype != torch.uint8 and not self.dtype.is_floating_point:
            raise InvalidError(f"dtype={self.dtype}: images are torch.uint8 or floats")
        if (self.mean is None) != (self.std is None):
            raise InvalidError("pass both of mean= and std=, or neither")
        if self.mean is not None and self.std is not None:
            if self.dtype == torch.uint8:
                raise InvalidError("mean= and std= are for floats: pass dtype=torch.float32 too")
            if not all(map(math.isfinite, [*self.mean, *self.std])) or min(self.std, default=1.0) <= 0:
                raise InvalidError(f"mean={self.mean}, std={self.std}: finite numbers, std above 0")


class ImageColumns:
    """The columns that hold images, and the threads that decode them."""

    def __init__(self, schema: Schema, images: Mapping[str, Image], threads: int | None) -> None:
        if threads is not None:
            whole("decode_threads", threads, least=1, bits=16)
        self._threads = threads
        self._ranks = 1 if threads is not None else ranks_sharing_processors()
        # Started by whichever thread has the first images.
        self._lock = threading.Lock()
        self._decoder: ImageDecoder | None = None
        self._columns = {path: (image, _form(schema, path, image)) for path, image in images.items()}

    def __contains__(self, path: object) -> bool:
        return path in self._columns

    def _started(self) -> ImageDecoder:
        with self._lock:
            if self._decoder is None:
                self._decoder = ImageDecoder(self._threads, self._ranks)
            return self._decoder

    def close(self) -> None:
        """Ends the threads, once they have decoded what they are at."""
        with self._lock:
            self._decoder = None

    def tensor(self, column: Column, samples: Sequence[int], vary: tuple[int, int] | None) -> torch.Tensor:
        """The images of a column, whose rows have these numbers in the dataset; varied by a seed and an epoch."""
        image, form = self._columns[column.name]
        if column.form == "struct":
            column = dict(column.fields())["bytes"]
        pixels = from_dlpack(self._started().decode(column, form, samples, vary))
        return pixels if image.dtype == torch.uint8 else _floats(pixels, image)


def _form(schema: Schema, path: str, image: Image) -> ImageForm:
    if not isinstance(image, Image):
        raise InvalidError(f"images= has {image!r} for {path!r}: pass a forebay.torch.Image")
    form = ImageForm(
        schema,
        path,
        size=image.size,
        grey=image.grey,
        shape=image.shape,
        augment=image.augment,
        crop_share=image.crop_share,
    )
    for name, values in [("mean", image.mean), ("std", image.std)]:
        if values is not None and len(values) != form.channels:
            raise InvalidError(f"{name}= has {len(values)} numbers, the images of {path!r} have {form.channels} channels")
    return form


def _floats(pixels: torch.Tensor, image: Image) -> torch.Tensor:
    """As the models of `forebay-train` make them of bytes: the same operations in the same order."""
    floats = pixels.to(torch.float32)
    if image.mean is None or image.std is None:
        return floats.div_(_BYTE).to(image.dtype)
    mean, std = _of_channels(image.mean), _of_channels(image.std)
    return floats.sub_(mean).div_(std).to(image.dtype)


def _of_channels(values: Sequence[float]) -> torch.Tensor:
    """Whatever torch's defaults for types and devices are."""
    scaled = [_BYTE * value for value in values]
    return torch.tensor(scaled, dtype=torch.float32, device="cpu").view(1, -1, 1, 1)
