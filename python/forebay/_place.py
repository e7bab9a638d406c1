"""Where data comes from: keywords of `forebay.dataset` and `forebay.fs` as the extension takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forebay._errors import InvalidError
from forebay._local_node import LocalNode, local_settings
from forebay._numbers import whole
from forebay._source import source_settings


def place(
    function: str,
    *,
    endpoint: str | Sequence[str] | LocalNode | None,
    direct: bool,
    zone: str | None,
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
        "local": local,
        "source": source,
        "direct_memory_bytes": None if direct_memory_bytes is None else whole("direct_memory_bytes", direct_memory_bytes),
    }
