"""What was pickled by another version of this package is refused: its settings may mean something else here."""

from __future__ import annotations

from forebay._errors import InvalidError
from forebay._forebay import __version__


def check_pickled(what: str, package: str | None, instead: str) -> None:
    """`package` is the version that pickled it; None if it did not say, as versions of before did not."""
    if package != __version__:
        by = "an older version of forebay" if package is None else f"forebay {package}"
        raise InvalidError(
            f"{what} was pickled by {by}, this process has forebay {__version__}: install the same version on both sides, or {instead}"
        )
