"""Whole numbers among the arguments."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from forebay._errors import InvalidError


def whole(name: str, number: SupportsIndex, *, least: int = 0, bits: int = 64) -> int:
    """The number that was passed as `name`. `InvalidError` if it is less than `least` or has more than `bits` bits,
    `TypeError` if it is no whole number."""
    try:
        value = operator.index(number)
    except TypeError:
        raise TypeError(f"{name}={number!r}: it must be a whole number") from None
    if value < least or value >> bits:
        limit = f"at least {least}" if value < least else f"less than 2**{bits}"
        raise InvalidError(f"{name}={value}: it must be {limit}")
    return value
