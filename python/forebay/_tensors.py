"""Columns of Arrow as torch tensors that share their memory."""

from __future__ import annotations

import json
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
        """A row's values, not copied; negative numbers count from the end.

        Raises `IndexError` for a row that does not exist.
        """
        row = range(len(self.offsets) - 1)[number]
        return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]


class TensorOptions(TypedDict, total=False):
    """What becomes of columns that are no plain tensors.

    `nulls` says what stands in place of nulls, by column: ``nulls={"age": 0}``. A field of a struct is named with it:
    ``{"place.north": 0}``; a struct's own name is a rule for those of its fields that have none. In place of a list of any
    length stands a list: ``{"tags": []}``; nulls within lists have no rule and are an error. `ragged` says what becomes of
    lists of different lengths: "list" for a list of tensors, "pad" for one tensor filled up with zeros, with the lengths
    (`[rows]` of int64) beside it as "tags_lengths", "raw" for a `Ragged`; unset, they are an error. `binaries` says what
    becomes of strings and binaries: "list" (the default) for a list of `str` or `bytes`, each a copy, "views" for a list of
    read-only `memoryview` of the loader's own memory, texts as UTF-8, or "raw" for a `Ragged` of that memory. `images` names
    columns of images, which are decoded: ``images={"image": forebay.torch.Image(224, augment="crop")}``, in
    `decode_threads` threads (a rank's share of the processors).
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


class _Padded(NamedTuple):
    """Lists filled up to one length, and the lengths that they had: two entries of a batch."""

    values: torch.Tensor
    lengths: torch.Tensor


class _Shape(NamedTuple):
    """Of a column of Arrow's extension type `arrow.fixed_shape_tensor`, whose rows lie flat."""

    physical: list[int]
    """The shape of a row as it lies in memory."""
    order: list[int]
    """Which dimension in memory each dimension of the tensor is."""


class Tensors:
    """Makes tensors of columns; an `InvalidError` names the column that cannot be one."""

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
        self._names, self._paths, self._shapes = schema.names, set(schema.paths()), _shapes(schema)
        self._nulls, self._ragged, self._binaries = dict(nulls or {}), ragged, binaries
        unknown = set(self._nulls) - self._paths
        if unknown:
            raise InvalidError(f"nulls= names {min(unknown)!r}, which is none of {', '.join(schema.paths())}")
        self.images = ImageColumns(schema, images, decode_threads) if images else None

    def columns(self, batch: RecordBatch, place: Place) -> Iterable[tuple[str, Any]]:
        """The names and tensors of all columns of a batch that has the columns of the schema."""
        tensors: list[torch.Tensor | None] = []
        is_plain = self.images is None and not self._shapes
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
            entry
            for name, tensor in zip(self._names, tensors, strict=True)
            for entry in (
                _entries(name, self._column(batch[name], None, place))
                if tensor is None or name in images
                else [(name, self._shaped(name, tensor))]
            )
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
                return self._shaped(name, _filled(column, filler))
            case "values":
                return _BINARIES[self._binaries](column, filler)
            case "list":
                return self._lists(column, filler)
            case "struct":
                fields = [(name, self._column(field, filler, place)) for name, field in column.fields()]
                return {name: value for field in fields for name, value in _entries(*field)}
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
        if self._ragged == "pad" and column.name + _LENGTHS in self._paths:
            raise InvalidError(
                f"the lengths of column {column.name!r} have no place, as there is a column {column.name + _LENGTHS!r}: leave "
                "one of the two out by columns=, or pass ragged='list' or 'raw'"
            )
        items, offsets = column.items()
        if items.form != "tensor":
            raise InvalidError(
                f"column {column.name!r} of type {column.type} holds lists that are no tensors: leave it out by columns=, or "
                "read it with forebay.Loader"
            )
        if items.null_count:
            raise InvalidError(
                f"column {column.name!r} has {items.null_count} nulls within its lists in this batch, for which a tensor has "
                "no place, and nulls= stands for whole lists only: leave it out by columns=, or read it with forebay.Loader"
            )
        values, starts = self._shaped(items.name, _tensor(items)), from_dlpack(offsets)
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
        lengths = torch.tensor([len(row) for row in lists], dtype=torch.int64, device="cpu")
        return _Padded(torch.nn.utils.rnn.pad_sequence(lists, batch_first=True), lengths)

    def _shaped(self, path: str, flat: torch.Tensor) -> torch.Tensor:
        """Rows in the shape that their type says, not copied."""
        shape = self._shapes.get(path)
        if shape is None:
            return flat
        tensor = flat.view(len(flat), *shape.physical, *flat.shape[2:])
        return tensor.permute(0, *(1 + dimension for dimension in shape.order), *range(1 + len(shape.order), tensor.dim()))


def _entries(name: str, value: Any) -> list[tuple[str, Any]]:
    """What a column is in a batch."""
    return [(name, value.values), (name + _LENGTHS, value.lengths)] if isinstance(value, _Padded) else [(name, value)]


def _tensor(column: Column) -> torch.Tensor:
    try:
        return from_dlpack(column)
    except InvalidError as e:
        # Nulls within lists of one length, or lists nested too deep.
        raise InvalidError(f"{e}: leave it out by columns=, or read it with forebay.Loader") from None


# Behind a column's name, where its lists were filled up.
_LENGTHS = "_lengths"

# Torch fills no unsigned tensors of more than 8 bits: they are filled as signed ones.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _filled(column: Column, filler: Any) -> torch.Tensor:
    tensor = _tensor(column)
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


def _shapes(schema: Schema) -> dict[str, _Shape]:
    """The columns whose rows are tensors of a fixed shape, and such fields of structs and items of lists, by their paths."""
    return {path: _shape(path, values, told) for path, values, told in schema.fixed_shapes()}


def _shape(path: str, values: int | None, told: str) -> _Shape:
    """Names of dimensions have no place in a tensor and are left out."""
    try:
        said = json.loads(told)
        lengths = [int(length) for length in said["shape"]]
        order = [int(dimension) for dimension in said.get("permutation") or range(len(lengths))]
        is_sound = sorted(order) == list(range(len(lengths))) and values == math.prod(lengths)
    except (KeyError, TypeError, ValueError):
        is_sound = False
    if not is_sound:
        raise InvalidError(
            f"column {path!r} is said to hold tensors of one shape, by metadata that make no sense "
            f"({told}): leave it out by columns=, or read it with forebay.Loader"
        )
    return _Shape(lengths, order)
