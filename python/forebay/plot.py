"""Charts of what was measured. They need matplotlib, which Forebay does not install.

>>> import forebay.plot  # doctest: +SKIP
>>> forebay.plot.epoch("report.json")  # doctest: +SKIP

The report is what ``forebay epoch URI --epochs 2 --json`` prints: the first epoch of a dataset that no cache holds is cold, the
next ones are warm.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from forebay._errors import Error, InvalidError

__all__ = ["epoch"]

_MB = 1e6
_COLD, _WARM = "tab:blue", "tab:orange"


def epoch(report: Mapping[str, Any] | str | os.PathLike[str], *, axes: Any = None) -> Any:
    """Draws the speed of each epoch, cold against warm: samples a second, with the wait for the first batch and what came
    from the object store written on each bar.

    `report` is what ``forebay epoch --json`` printed, as a dict or the path of a file that holds it. Draws into `axes` if
    there are any, else into a figure of its own, and returns the axes. Raises `InvalidError` for anything else, and
    `forebay.Error` where there is no matplotlib.
    """
    epochs = _epochs(report)
    if axes is None:
        axes = _pyplot().subplots(figsize=(1.5 + 1.5 * len(epochs), 4), layout="constrained")[1]
    for kind, color in [("cold", _COLD), ("warm", _WARM)]:
        shown = {place: row for place, row in enumerate(epochs) if _kind(row) == kind}
        if shown:
            speeds = [row["samples_per_s"] for row in shown.values()]
            bars = axes.bar(list(shown), speeds, color=color, label=kind)
            axes.bar_label(bars, [_text(row) for row in shown.values()], label_type="center", color="white")
    axes.set_xticks(range(len(epochs)), [str(row["epoch"]) for row in epochs])
    axes.set_xlabel("epoch")
    axes.set_ylabel("samples/s")
    axes.legend()
    return axes


def _epochs(report: Mapping[str, Any] | str | os.PathLike[str]) -> list[Mapping[str, Any]]:
    if not isinstance(report, Mapping):
        with open(report, encoding="utf-8") as file:
            try:
                report = json.load(file)
            except ValueError as e:
                raise InvalidError(f"{file.name} is no report: {e}") from e
    epochs = report.get("epochs") if isinstance(report, Mapping) else None
    wanted = {"epoch", "samples_per_s", "first_batch_s", "s3_bytes"}
    if not isinstance(epochs, list) or not epochs or not all(isinstance(row, Mapping) and wanted <= row.keys() for row in epochs):
        raise InvalidError("this is no report of epochs: pass what `forebay epoch URI --epochs 2 --json` prints")
    return epochs


def _kind(row: Mapping[str, Any]) -> str:
    """An epoch is cold if any of it came from the object store."""
    return "cold" if row["s3_bytes"] else "warm"


def _text(row: Mapping[str, Any]) -> str:
    first = f"first batch\n{row['first_batch_s']:.2f} s"
    return f"{first}\n{row['s3_bytes'] / _MB:.0f} MB\nfrom S3" if row["s3_bytes"] else first


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot
    except ImportError as e:
        raise Error("forebay.plot draws with matplotlib, which is not installed: pip install matplotlib") from e
    return matplotlib.pyplot
