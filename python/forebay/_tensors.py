"""Columns of Arrow as torch tensors that share their memory."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict

import torch
from torch.utils.dlpack import from_dlpack

from forebay._errors import InvalidError
from forebay._forebay import Column, RecordBatch, Schema
from forebay._images import Image, ImageColumns

Filler = int | float | bool | str | bytes | Sequence[int | float | bool]
"""What may stand in place of a null."""

# What `from_dlpack` itself calls for a capsule: batches have many columns, and it takes twice as long.
shared: Callable[[object], torch.Tensor] = getattr(torch._C, "_from_dlpack", from_dlpack)


class Ragged(NamedTuple):
    """Rows of different lengths as two tensors, which `torch.nested.nested_tensor_from_jagged` takes as they are."""

    values: torch.Tensor
    """The values of all rows, one after the other; uint8 for strings and binaries."""
    offsets: torch.Tensor
    """`[rows + 1]` of int64: where each row's values begin, and where the last row's end."""

    def row(self, number: int) -> torch.Tensor:
        """A row's values, not copied; negative numbers count from the end."""
        row = range(len(self.offsets) - 1)[number]
        return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]


class TensorOptions(TypedDict, total=False):
    """What becomes of columns that are no plain tensors.

    `nulls` says what stands in place of nulls, by column: ``nulls={"age": 0}``. A field of a struct is named with it:
    ``{"place.north": 0}``; a struct's own name is a rule for those of its fields that have none. In place of a list of any
    length stands a list: ``{"tags": []}``. `ragged` says what becomes of lists of different lengths: "list" for a list of
    tensors, "pad" for one tensor filled up with zeros, "raw" for a `Ragged`; unset, they are an error. `binaries` says what
    becomes of strings and binaries: "list" (the default) for a list of `str` or `bytes`, each a copy, "views" for a list of
    read-only `memoryview` of the loader's own memory, texts as UTF-8, or "raw" for a `Ragged` of that memory. `images` names columns of images, which are decoded: ``images={"image":
    forebay.torch.Image(224, augment="crop")}``, in `decode_threads` threads (a rank's share of the processors).
    """

    nulls: Mapping[str, Filler] | None
    ragged: Literal["list", "pad", "raw"] | None
    binaries: Literal["list", "views", "raw"]
    images: Mapping[str, Image] | None
    decode_threads: int | None


@dataclass(frozen=True)
class Place:
    """Which rows a batch holds: their numbers in the dataset; and the run's seed and the epoch, if images are varied."""

    samples: Sequence[int] = ()
    vary: tuple[int, int] | None = None


class Tensors:
    """Makes tensors of columns."""

    def __init__(
        self,
        schema: Schema,
        *,
        nulls: Mapping[str, Filler] | None = None,
        ragged: Literal["list", "pad", "raw"] | None = None,
        binaries: Literal["list", "views", "raw"] = "list",
        images: Mapping[str, Image] | None = None,
        decode_threads: int | None = None,
    ) -> None:
        if ragged not in (None, "list", "pad", "raw"):
            raise InvalidError(f"ragged={ragged!r}: there are 'list', 'pad' and 'raw'")
        if binaries not in ("list", "views", "raw"):
            raise InvalidError(f"binaries={binaries!r}: there are 'list', 'views' and 'raw'")
        self._names = schema.names
        self._nulls, self._ragged, self._binaries = dict(nulls or {}), ragged, binaries
        unknown = set(self._nulls) - set(schema.paths())
        if unknown:
            raise InvalidError(f"nulls= names {min(unknown)!r}, which is none of {', '.join(schema.paths())}")
        self.images = ImageColumns(schema, images, decode_threads) if images else None

    def columns(self, batch: RecordBatch, place: Place) -> Iterable[tuple[str, Any]]:
        """The names and tensors of all columns of a batch that has the columns of the schema."""
        tensors: list[torch.Tensor | None] = []
        is_plain = self.images is None
        for capsule, columns in batch.blocks():
            if capsule is None:
                is_plain = False
                tensors.append(None)
            elif columns == 1:
                tensors.append(shared(capsule))
            else:
                # Unsafe only where the whole is used as well. Views, which `split` makes, would count as changed when
                # another column is written to.
                tensors += torch.unsafe_split_with_sizes(shared(capsule), [len(batch)] * columns)
        if is_plain:
            return zip(self._names, tensors, strict=True)
        images: Container[str] = () if self.images is None else self.images
        return [
            (name, self._column(batch[name], None, place) if tensor is None or name in images else tensor)
            for name, tensor in zip(self._names, tensors, strict=True)
        ]

    def _column(self, column: Column, outer: Filler | None, place: Place) -> Any:
        """`outer` is the rule of the structs around it."""
        name = column.name
        if self.images is not None and name in self.images:
            return self.images.tensor(column, place.samples, place.vary)
        filler = self._nulls.get(name, outer)
        form = column.form
        # The nulls of a struct are its fields'.
        if column.null_count and filler is None and form != "struct":
            raise InvalidError(
                f"column {name!r} has {column.null_count} nulls in this batch, for which a tensor has no place: "
                f"pass nulls={{{name!r}: VALUE}}, or read it with forebay.Loader"
            )
        match form:
            case "tensor":
                return _filled(column, filler)
            case "values":
                return _BINARIES[self._binaries](column, filler)
            case "list":
                return self._lists(column, filler)
            case "struct":
                fields = column.fields()
                return {name: self._column(field, filler, place) for name, field in fields}
        raise InvalidError(
            f"column {name!r} of type {column.type} has no form as a tensor: leave it out by columns=, or read it "
            "with forebay.Loader"
        )

    def _lists(self, column: Column, filler: Filler | None) -> Any:
        if self._ragged is None:
            raise InvalidError(
                f"column {column.name!r} holds lists of different lengths: pass ragged='list', 'pad' or 'raw', or read it "
                "with forebay.Loader"
            )
        items, offsets = column.items()
        if items.form != "tensor" or items.null_count:
            raise InvalidError(
                f"column {column.name!r} of type {column.type} holds lists that are no tensors: read it with forebay.Loader"
            )
        values, starts = from_dlpack(items), from_dlpack(offsets)
        if self._ragged == "raw" and not column.null_count:
            return Ragged(values, starts)
        lists = list(torch.split(values, starts.diff().tolist()))
        if column.null_count:
            filled = _list(column, values, filler)
            lists = [row if valid else filled.clone() for row, valid in zip(lists, from_dlpack(column.valid()).tolist())]
        if self._ragged == "list":
            return lists
        if self._ragged == "raw":
            return _joined(lists)
        return torch.nn.utils.rnn.pad_sequence(lists, batch_first=True)


# Torch fills no unsigned tensors of more than 8 bits: they are filled as signed ones.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _filled(column: Column, filler: Any) -> torch.Tensor:
    tensor = from_dlpack(column)
    if column.null_count:
        # What stands in null rows is arbitrary, and the memory is the batch's own.
        number, signed = _number(column, tensor, filler), _SIGNED.get(tensor.dtype)
        if signed is not None and number > torch.iinfo(signed).max:
            number -= 1 << torch.iinfo(signed).bits
        tensor.view(signed or tensor.dtype)[~from_dlpack(column.valid())] = number
    return tensor


def _number(column: Column, tensor: torch.Tensor, filler: Any) -> int | float:
    """The rule's number, which must be one that the tensor can hold."""
    if tensor.dtype == torch.bool:
        wanted, fits = "True or False", filler in (0, 1)
    elif tensor.dtype.is_floating_point:
        most = torch.finfo(tensor.dtype).max
        wanted = f"a number of at most {most:.4g}"
        fits = isinstance(filler, numbers.Real) and _is_within(filler, most)
    else:
        limits = torch.iinfo(tensor.dtype)
        wanted = f"a whole number from {limits.min} to {limits.max}"
        fits = isinstance(filler, numbers.Integral) and limits.min <= int(filler) <= limits.max
    if not fits:
        raise _unfit(column, filler, wanted)
    return float(filler) if tensor.dtype.is_floating_point else int(filler)


def _is_within(number: numbers.Real, most: float) -> bool:
    """Whether a type of floats holds it; infinities and NaN are in all of them."""
    try:
        return not most < abs(float(number)) < math.inf
    except OverflowError:
        return False


def _text(column: Column, filler: Any) -> Any:
    """The rule's text or bytes, which must be what the column has."""
    wanted = str if column.type.endswith("Utf8") else bytes
    if not isinstance(filler, wanted):
        raise _unfit(column, filler, f"a value of type {wanted.__name__}")
    return filler


def _values(column: Column, filler: Any) -> list[Any]:
    values = column.values()
    if column.null_count:
        filled = _text(column, filler)
        return [filled if value is None else value for value in values]
    return values


def _views(column: Column, filler: Any) -> list[Any]:
    views = column.views()
    if column.null_count:
        text = _text(column, filler)
        filled = memoryview(text.encode() if isinstance(text, str) else text)
        return [filled if view is None else view for view in views]
    return views


def _bytes(column: Column, filler: Any) -> Ragged:
    """Strings or binaries as their bytes: the column's memory if it has no nulls."""
    if not column.null_count:
        values, offsets = column.items()
        return Ragged(shared(values.__dlpack__()), shared(offsets.__dlpack__()))
    rows = (row.encode() if isinstance(row, str) else row for row in _values(column, filler))
    return _joined([torch.frombuffer(bytearray(row), dtype=torch.uint8) if row else _NO_BYTES for row in rows])


_BINARIES = {"list": _values, "views": _views, "raw": _bytes}

# Here and below the device is named: torch's default device may be another one.
_NO_BYTES = torch.empty(0, dtype=torch.uint8, device="cpu")


def _joined(rows: list[torch.Tensor]) -> Ragged:
    lengths = torch.tensor([0, *map(len, rows)], dtype=torch.int64, device="cpu")
    return Ragged(torch.cat(rows) if rows else _NO_BYTES, lengths.cumsum(0))


def _list(column: Column, values: torch.Tensor, filler: Any) -> torch.Tensor:
    """What stands in place of a list of values."""
    if not isinstance(filler, list | tuple) or (filler and values.dim() > 1):
        raise _unfit(column, filler, "[]" if values.dim() > 1 else "a list, such as []")
    numbers = [_number(column, values, number) for number in filler]
    return torch.tensor(numbers, dtype=values.dtype, device="cpu") if numbers else values[:0]


def _unfit(column: Column, filler: object, wanted: str) -> InvalidError:
    return InvalidError(
        f"nulls= has {filler!r} for column {column.name!r} of type {column.type}, where nothing but {wanted} can stand: "
        f"pass nulls={{{column.name!r}: VALUE}} with that, or read it with forebay.Loader"
    )
