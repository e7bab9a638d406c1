"""Keywords for the object store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_KEYWORDS = (
    "s3_endpoint",
    "s3_region",
    "s3_access_key_id",
    "s3_secret_access_key",
    "s3_session_token",
    "s3_profile",
    "s3_path_style",
    "s3_anonymous",
    "s3_ca",
    "s3_max_requests",
    "s3_max_bytes_per_s",
    "patience_s",
)


def source_settings(function: str, store: Mapping[str, Any]) -> str:
    """Keywords as the extension takes them; empty if there are none."""
    unknown = sorted(set(store) - set(_KEYWORDS))
    if unknown:
        raise TypeError(f"forebay.{function}() knows no keyword {unknown[0]!r}: for the object store there are {', '.join(_KEYWORDS)}")
    return json.dumps(store) if store else ""
