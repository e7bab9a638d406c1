"""Tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def table(title: str, rows: Iterable[tuple[str, object]], heads: tuple[str, str] | None = None) -> str:
    """A table of two columns. All texts are escaped."""
    head = "" if heads is None else f"<tr><th>{escape(heads[0])}</th><th>{escape(heads[1])}</th></tr>"
    lines = (f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>" for name, value in rows)
    return f"<table><caption>{escape(title)}</caption>{head}{''.join(lines)}</table>"
