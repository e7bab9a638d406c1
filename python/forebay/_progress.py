"""How far the filling of a cache is: a bar of tqdm, or a line of text where there is no tqdm."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

# Where lines cannot be written over, there are as many seconds between two of them.
_LINE_S = 5.0


class Progress(NamedTuple):
    """How much of a dataset the cache holds: segments, and bytes as decoded; and what that took from the object store."""

    segments_held: int
    segments: int
    bytes_held: int
    bytes: int
    s3_bytes: int


Report = Callable[[Progress], object]
"""Called with the progress, now and then."""


@contextmanager
def reporting(progress: bool | Report | None, what: str) -> Iterator[Report | None]:
    """What `progress=` stands for: True for a bar, or a function of one's own."""
    if progress is not True:
        yield progress or None
        return
    try:
        # It draws a widget in notebooks.
        from tqdm.auto import tqdm
    except ModuleNotFoundError:
        line = _Line(what)
        try:
            yield line.show
        finally:
            line.end()
        return
    with tqdm(desc=what, total=0, unit="B", unit_scale=True) as bar:

        def show(held: Progress) -> None:
            bar.total = held.bytes
            bar.set_postfix_str(_segments(held), refresh=False)
            bar.update(held.bytes_held - bar.n)

        yield show
        bar.refresh()


class _Line:
    """A line on stderr, written over where that is a terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_terminal = sys.stderr.isatty()
        self._told, self._told_at = "", -_LINE_S
        self._latest = ""

    def show(self, held: Progress) -> None:
        share = held.bytes_held / held.bytes if held.bytes else 1.0
        self._latest = f"{self._what}: {share:.0%} of {held.bytes / 1e6:.1f} MB, {_segments(held)}"
        if self._is_terminal or time.monotonic() >= self._told_at + _LINE_S:
            self._tell()

    def _tell(self) -> None:
        if self._latest == self._told:
            return
        # A shorter line leaves nothing of a longer one.
        before, after = ("\r", "\x1b[K") if self._is_terminal else ("", "\n")
        print(f"{before}{self._latest}", end=after, file=sys.stderr, flush=True)
        self._told, self._told_at = self._latest, time.monotonic()

    def end(self) -> None:
        self._tell()
        if self._is_terminal and self._told:
            print(file=sys.stderr, flush=True)


def _segments(held: Progress) -> str:
    return f"{held.segments_held} of {held.segments} segments"
