"""Columns of Arrow as torch tensors that share their memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

import torch
from torch.utils.dlpack import from_dlpack

from forebay._errors import InvalidError
from forebay._forebay import Column, RecordBatch, Schema

Filler = int | float | bool | str | bytes | Sequence[int | float | bool]
"""What may stand in place of a null."""

# What `from_dlpack` itself calls for a capsule: batches have many columns, and it takes twice as long.
_shared: Callable[[object], torch.Tensor] = getattr(torch._C, "_from_dlpack", from_dlpack)


class TensorOptions(TypedDict, total=False):
    """What becomes of columns that are no plain tensors.

    `nulls` says what stands in place of nulls, by column: ``nulls={"age": 0}``. A field of a struct is named with it:
    ``{"place.north": 0}``; a struct's own name is a rule for those of its fields that have none. In place of a list of any
    length stands a list: ``{"tags": []}``. `ragged` says what becomes of lists of different lengths: "list" for a list of
    tensors, "pad" for one tensor filled up with zeros; unset, they are an error.
    """

    nulls: Mapping[str, Filler] | None
    ragged: Literal["list", "pad"] | None


class Tensors:
    """Makes tensors of columns."""

    def __init__(
        self,
        schema: Schema,
        *,
        nulls: Mapping[str, Filler] | None = None,
        ragged: Literal["list", "pad"] | None = None,
    ) -> None:
        if ragged not in (None, "list", "pad"):
            raise InvalidError(f"ragged={ragged!r}: there are 'list' and 'pad'")
        self._names = schema.names
        self._nulls, self._ragged = dict(nulls or {}), ragged
        unknown = set(self._nulls) - set(schema.paths())
        if unknown:
            raise InvalidError(f"nulls= names {min(unknown)!r}, which is none of {', '.join(schema.paths())}")

    def columns(self, batch: RecordBatch) -> Iterable[tuple[str, Any]]:
        """The names and tensors of all columns of a batch that has the columns of the schema."""
        capsules = batch.capsules()
        if None not in capsules:
            return zip(self._names, map(_shared, capsules), strict=True)
        return [
            (name, self._column(batch[name], None) if capsule is None else _shared(capsule))
            for name, capsule in zip(self._names, capsules, strict=True)
        ]

    def _column(self, column: Column, outer: Filler | None) -> Any:
        """`outer` is the rule of the structs around it."""
        name = column.name
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
                return _values(column, filler)
            case "list":
                return self._lists(column, filler)
            case "struct":
                return {name: self._column(field, filler) for name, field in column.fields()}
        raise InvalidError(
            f"column {name!r} of type {column.type} has no form as a tensor: leave it out by columns=, or read it "
            "with forebay.Loader"
        )

    def _lists(self, column: Column, filler: Filler | None) -> Any:
        if self._ragged is None:
            raise InvalidError(
                f"column {column.name!r} holds lists of different lengths: pass ragged='list' or 'pad', or read it with "
                "forebay.Loader"
            )
        items, offsets = column.items()
        if items.form != "tensor" or items.null_count:
            raise InvalidError(
                f"column {column.name!r} of type {column.type} holds lists that are no tensors: read it with forebay.Loader"
            )
        values, starts = from_dlpack(items), from_dlpack(offsets)
        lists = list(torch.split(values, starts.diff().tolist()))
        if column.null_count:
            filled = _list(column, values, filler)
            lists = [row if valid else filled.clone() for row, valid in zip(lists, from_dlpack(column.valid()).tolist())]
        if self._ragged == "list":
            return lists
        return torch.nn.utils.rnn.pad_sequence(lists, batch_first=True)


def _filled(column: Column, filler: Any) -> torch.Tensor:
    tensor = from_dlpack(column)
    if column.null_count:
        # What stands in null rows is arbitrary, and the memory is the batch's own.
        tensor[~from_dlpack(column.valid())] = _number(column, tensor, filler)
    return tensor


def _number(column: Column, tensor: torch.Tensor, filler: Any) -> int | float | bool:
    """The rule's number, which must be one that the tensor can hold."""
    if tensor.dtype == torch.bool:
        wanted, fits = "True or False", filler in (0, 1)
    elif tensor.dtype.is_floating_point:
        wanted, fits = "a number", isinstance(filler, int | float)
    else:
        limits = torch.iinfo(tensor.dtype)
        wanted = f"a whole number from {limits.min} to {limits.max}"
        fits = isinstance(filler, int) and limits.min <= filler <= limits.max
    if not fits:
        raise _unfit(column, filler, wanted)
    number: int | float | bool = filler
    return number


def _values(column: Column, filler: Any) -> list[Any]:
    values = column.values()
    if column.null_count:
        wanted = str if column.type.endswith("Utf8") else bytes
        if not isinstance(filler, wanted):
            raise _unfit(column, filler, f"a value of type {wanted.__name__}")
        return [filler if value is None else value for value in values]
    return values


def _list(column: Column, values: torch.Tensor, filler: Any) -> torch.Tensor:
    """What stands in place of a list of values."""
    if not isinstance(filler, list | tuple) or (filler and values.dim() > 1):
        raise _unfit(column, filler, "[]" if values.dim() > 1 else "a list, such as []")
    numbers = [_number(column, values, number) for number in filler]
    return torch.tensor(numbers, dtype=values.dtype) if numbers else values[:0]


def _unfit(column: Column, filler: object, wanted: str) -> InvalidError:
    return InvalidError(
        f"nulls= has {filler!r} for column {column.name!r} of type {column.type}, where nothing but {wanted} can stand: "
        f"pass nulls={{{column.name!r}: VALUE}} with that, or read it with forebay.Loader"
    )
