"""A cache node of this user's on this machine, which datasets are read through where no other cache is named."""

from __future__ import annotations

import json
import operator
import os
import sysconfig
from collections.abc import Callable
from typing import Any, TypedDict

from forebay import _forebay
from forebay._pickled import check_pickled
from forebay._source import source_settings


class LocalNodeStatus(TypedDict):
    """What a running node says of itself. `memory_bytes_used` is all that its process takes, mapped files too; bytes of the
    cache are of disk. `pid` is None where the system does not tell it, `log` is a path."""

    pid: int | None
    version: str
    uptime_s: int
    cache_dir: str
    cache_bytes_used: int
    cache_bytes_limit: int
    memory_bytes_used: int
    memory_bytes_limit: int
    log: str


def local_node(
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
    memory_bytes: int | str | None = None,
    idle_s: float | None = None,
    **store: Any,
) -> LocalNode:
    """Starts this machine's cache node, unless it runs: what `forebay.dataset` does where no cache is named.

    Call it to start the node with other bounds, or to stop it or look at it. `cache_dir` is where nodes keep what they
    read, `cache_bytes` and `memory_bytes` what it may take (numbers, or as in ``"50GB"``), `idle_s` how many seconds
    without a reader it stays. `store` is how it reads the object store: the ``s3_...`` keywords of `forebay.dataset`.

    A node that already runs keeps its bounds; that is logged. Another `cache_dir` or `store`, or other credentials in
    the environment, mean another node. Give `forebay.dataset` the node as ``endpoint=`` where these keywords matter.

    Raises `InvalidError` for settings that make no sense and where there is no `forebay-server`, `DeniedError` for folders
    that cannot be used and for a node that ends at its start, `FullError` if there is no room on disk, `RetryError` if the
    node does not answer, `ClosedError` in a forked process. A keyword that it does not know is a `TypeError`.
    """
    node = LocalNode(local_settings(cache_dir, cache_bytes, memory_bytes, idle_s), source_settings("local_node", store))
    node.start()
    return node


def local_settings(
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
    memory_bytes: int | str | None = None,
    idle_s: float | None = None,
) -> str:
    """Settings as the extension takes them."""
    folders = {sysconfig.get_path("scripts"), sysconfig.get_path("scripts", "posix_user")}
    return json.dumps(
        {
            "cache_dir": None if cache_dir is None else os.path.abspath(os.fspath(cache_dir)),
            "cache_bytes": cache_bytes,
            "memory_bytes": memory_bytes,
            "idle_s": idle_s,
            "server_folders": sorted(folders),
        },
        # Numbers may be numpy's.
        default=operator.index,
    )


class LocalNode:
    """A cache node of this user's on this machine. Made by `forebay.local_node`.

    It can be pickled, for other processes on this machine, with its keywords (credentials among them); another version of
    Forebay refuses the pickle (`InvalidError`). In a forked process its methods raise `ClosedError`.
    """

    def __init__(self, settings: str, source: str) -> None:
        self._asked = (settings, source)
        self._core = _forebay.LocalNode(settings, source)

    @property
    def endpoint(self) -> str:
        """The address of its socket, as other programs take it: ``unix:/PATH``."""
        return self._core.endpoint

    def start(self) -> None:
        """Starts it, unless it runs. Datasets do so by themselves, also when it has died.

        Raises what `forebay.local_node` raises.
        """
        self._core.start()

    def stop(self) -> bool:
        """Ends it, and returns whether it ran. What it has cached stays on disk. Those who read from it start it again.

        Raises `DeniedError` if its process or its folder is not this user's, `RetryError` if it has not ended after 15 s.
        """
        return self._core.stop()

    def status(self) -> LocalNodeStatus | None:
        """What it says of itself; None if it does not run.

        Raises `RetryError` if it runs and does not answer.
        """
        said = self._core.status()
        status: LocalNodeStatus | None = None if said is None else json.loads(said)
        return status

    def __reduce__(self) -> tuple[Callable[..., LocalNode], tuple[str, str, str]]:
        return _unpickled, (*self._asked, _forebay.__version__)

    def __repr__(self) -> str:
        return f"<forebay.LocalNode at {self.endpoint}>"


def _unpickled(settings: str, source: str, package: str | None = None) -> LocalNode:
    check_pickled("the node of this machine", package, "call forebay.local_node() there")
    return LocalNode(settings, source)
