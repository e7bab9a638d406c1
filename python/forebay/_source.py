"""Keywords for the object store."""

from __future__ import annotations

import json
import operator
import os
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
    """Keywords as the extension takes them; empty if there are none. One that is None is as if it were left out."""
    unknown = sorted(set(store) - set(_KEYWORDS))
    if unknown:
        raise TypeError(f"forebay.{function}() knows no keyword {unknown[0]!r}: for the object store there are {', '.join(_KEYWORDS)}")
    given = {name: value for name, value in store.items() if value is not None}
    if "s3_ca" in given:
        # A node of this machine runs in another directory, and so may a process that unpickles it.
        given["s3_ca"] = os.path.abspath(os.fspath(given["s3_ca"]))
    # Numbers may be numpy's.
    return json.dumps(given, default=operator.index) if given else ""
