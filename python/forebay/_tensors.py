"""Columns of Arrow as torch tensors that share their memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import torch
from torch.utils.dlpack import from_dlpack

from forebay._errors import InvalidError
from forebay._forebay import Column


class TensorOptions(TypedDict, total=False):
    """What becomes of columns that are no plain tensors.

    `nulls` says what stands in place of nulls, by column: ``nulls={"age": 0}``. `ragged` says what becomes of lists of
    different lengths: "list" for a list of tensors, "pad" for one tensor filled up with zeros; unset, they are an error.
    """

    nulls: Mapping[str, int | float | bool | str | bytes] | None
    ragged: Literal["list", "pad"] | None


class Tensors:
    """Makes tensors of columns."""

    def __init__(
        self,
        columns: Sequence[str],
        *,
        nulls: Mapping[str, int | float | bool | str | bytes] | None = None,
        ragged: Literal["list", "pad"] | None = None,
    ) -> None:
        if ragged not in (None, "list", "pad"):
            raise InvalidError(f"ragged={ragged!r}: there are 'list' and 'pad'")
        self._nulls, self._ragged = dict(nulls or {}), ragged
        unknown = set(self._nulls) - set(columns)
        if unknown:
            raise InvalidError(f"nulls= names {min(unknown)!r}, which is none of {', '.join(columns)}")

    def column(self, column: Column) -> Any:
        filled = self._nulls.get(column.name)
        if column.null_count and filled is None:
            raise InvalidError(
                f"column {column.name!r} has {column.null_count} nulls in this batch, for which a tensor has no place: "
                f"pass nulls={{{column.name!r}: VALUE}}, or read it with forebay.Loader"
            )
        match column.form:
            case "tensor":
                return _filled(column, filled)
            case "values":
                values = column.values()
                return [filled if value is None else value for value in values] if column.null_count else values
            case "list":
                return self._lists(column)
            case "struct":
                return {name: self.column(field) for name, field in column.fields()}
        raise InvalidError(
            f"column {column.name!r} of type {column.type} has no form as a tensor: leave it out by columns=, or read it "
            "with forebay.Loader"
        )

    def _lists(self, column: Column) -> Any:
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
        if self._ragged == "list":
            return lists
        return torch.nn.utils.rnn.pad_sequence(lists, batch_first=True)


def _filled(column: Column, value: Any) -> torch.Tensor:
    tensor = from_dlpack(column)
    if column.null_count:
        # What stands in null rows is arbitrary, and the memory is the batch's own.
        tensor[~from_dlpack(column.valid())] = value
    return tensor
