"""Where data comes from: keywords of `forebay.dataset` and `forebay.fs` as the extension takes them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from forebay._errors import InvalidError
from forebay._local_node import LocalNode, local_settings
from forebay._numbers import whole
from forebay._source import source_settings


class Shown(TypedDict):
    """Files with what this process believes of nodes, and what it shows to them, as absolute paths."""

    ca: str | None
    cert: str | None
    key: str | None
    token_file: str | None


def shown(
    ca: str | os.PathLike[str] | None,
    cert: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
    token_file: str | os.PathLike[str] | None,
) -> Shown:
    """Other processes that unpickle it may have another working directory."""
    return {"ca": _absolute(ca), "cert": _absolute(cert), "key": _absolute(key), "token_file": _absolute(token_file)}


def _absolute(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.path.abspath(os.fspath(path))


def place(
    function: str,
    *,
    endpoint: str | Sequence[str] | LocalNode | None,
    direct: bool,
    zone: str | None,
    shown: Shown,
    store: Mapping[str, Any],
    direct_memory_bytes: int | None = None,
) -> dict[str, Any]:
    """A cache, this machine's node or the object store."""
    source, local = source_settings(function, store), local_settings()
    if isinstance(endpoint, LocalNode):
        if source:
            raise InvalidError("keywords for the object store (s3_...) are the node's: pass them to forebay.local_node()")
        (local, source), endpoint = endpoint._asked, "local"
    return {
        "endpoint": endpoint if endpoint is None or isinstance(endpoint, str) else ",".join(endpoint),
        "direct": direct,
        "zone": zone,
        "shown": shown,
        "local": local,
        "source": source,
        "direct_memory_bytes": None if direct_memory_bytes is None else whole("direct_memory_bytes", direct_memory_bytes),
    }
