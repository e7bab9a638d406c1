"""The cache node that this machine starts by itself: one for all processes of a user, mended by those who miss it."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import BIN, ROWS, SEGMENT_BYTES, Cluster

import forebay


class Here:
    """A user's folders, of which no other test knows, and the nodes that were started in them."""

    def __init__(self, cluster: Cluster, root: Path) -> None:
        self.cluster, self.root = cluster, root
        self.runtime, self.cache = root / "run", root / "cache"

    def dataset(self, name: str = "rows", **options: Any) -> forebay.Dataset:
        return forebay.dataset(self.cluster.uri(name), segment_bytes=SEGMENT_BYTES, **{**self.cluster.store, **options})

    def node(self, **options: Any) -> forebay.LocalNode:
        return forebay.local_node(**{**self.cluster.store, **options})

    def pids(self) -> list[int]:
        """The processes that listen at sockets here, as the kernel says."""
        found = []
        for path in self.runtime.glob("*.sock"):
            with socket.socket(socket.AF_UNIX) as stream:
                try:
                    stream.connect(str(path))
                except ConnectionRefusedError:
                    continue
                peer = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                found.append(struct.unpack("3i", peer)[0])
        return found

    def kill(self) -> None:
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        until(lambda: not self.pids())


def until(happened: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < limit, "it does not happen"
        time.sleep(0.02)


@pytest.fixture
def here(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    # Not pytest's folder: the path of a socket must be short.
    root = Path(tempfile.mkdtemp(prefix="forebay-"))
    here = Here(cluster, root)
    monkeypatch.setenv("FOREBAY_RUNTIME_DIR", str(here.runtime))
    monkeypatch.setenv("FOREBAY_CACHE_DIR", str(here.cache))
    monkeypatch.setenv("FOREBAY_CACHE_BYTES", "200MB")
    monkeypatch.setenv("FOREBAY_MEMORY_BYTES", "64MiB")
    monkeypatch.setenv("FOREBAY_SERVER", str(BIN / "forebay-server"))
    monkeypatch.delenv("FOREBAY_ENDPOINT", raising=False)
    yield here
    if here.runtime.is_dir():
        here.kill()
    shutil.rmtree(root, ignore_errors=True)


def ids(loader: forebay.Loader[forebay.Batch]) -> list[list[int]]:
    return [pa.array(batch["id"]).to_pylist() for batch in loader]


SCRIPT = """
import json, os, pickle, signal, sys, time
import forebay
def say(what): print(json.dumps(what), flush=True)
dataset = pickle.loads(bytes.fromhex(sys.argv[1]))
"""


def start(dataset: bytes, script: str) -> subprocess.Popen[str]:
    """A process that runs a script with `dataset`, which was pickled here."""
    command = [sys.executable, "-c", SCRIPT + script, dataset.hex()]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_the_first_use_starts_it_and_later_ones_find_it_warm(here: Here, table: pa.Table) -> None:
    ds = here.dataset()
    assert ds.version == here.cluster.direct().version
    assert ds.to_table().equals(table)
    assert ds.take([599, 0]).equals(table.take([599, 0]))
    loader = forebay.Loader(ds, batch_size=20, seed=1)
    whole = forebay.Loader(here.cluster.direct(), batch_size=20, seed=1)
    wanted = ids(whole)
    assert ids(loader) == wanted and loader.digest == whole.digest
    (pid,) = here.pids()
    (node,) = ds.status()
    assert node["cache_bytes_limit"] == 200_000_000 and node["segments_held"] == ds.num_segments
    # Nobody else can reach it.
    assert here.runtime.stat().st_mode & 0o777 == 0o700
    (sock,) = here.runtime.glob("*.sock")
    assert sock.stat().st_mode & 0o777 == 0o600
    # It is no child of this session: an interrupt here does not reach it.
    assert os.getsid(pid) == pid != os.getsid(0)
    before = here.cluster.gets()
    again = here.dataset()
    assert again.to_table().equals(table) and ids(forebay.Loader(again, batch_size=20, seed=1)) == wanted
    process = start(pickle.dumps(again), "say(dataset.to_table()['id'].to_pylist())")
    out, _ = process.communicate(timeout=60)
    assert out.startswith("[0, 1, 2") and process.returncode == 0
    assert here.cluster.gets() == before, "another process reads what this one has cached"
    assert here.pids() == [pid]
    assert here.cluster.direct().to_table().equals(table) and here.cluster.gets() > before


def test_processes_that_start_at_once_share_one(here: Here) -> None:
    # Opened directly, so that the eight are the first to need the node.
    function, (uri, options, version, package) = here.cluster.direct().__reduce__()
    place = {**options["place"], "direct": False}
    options = {**options, "place": place}

    class Asked:
        def __reduce__(self) -> tuple[Any, ...]:
            return function, (uri, options, version, package)

    pickled = pickle.dumps(Asked())
    assert here.pids() == []
    script = "sys.stdin.readline(); say([dataset.num_rows, len(dataset.to_table())])"
    processes = [start(pickled, script) for _ in range(8)]
    for process in processes:
        out, _ = process.communicate("go\n", timeout=120)
        assert out == f"[{ROWS}, {ROWS}]\n"
    assert len(here.pids()) == 1
    assert len(list((here.cache / "nodes").iterdir())) == 1


def test_it_ends_when_idle_and_its_cache_stays(here: Here, table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_IDLE_S", "1")
    ds = here.dataset()
    assert ds.to_table().equals(table)
    time.sleep(2)
    assert len(here.pids()) == 1, "a dataset that is open keeps it"
    del ds
    until(lambda: not here.pids())
    assert not list(here.runtime.glob("*.sock"))
    before = here.cluster.gets()
    assert here.dataset().to_table().equals(table)
    assert here.cluster.gets() == before


def test_a_node_that_is_killed_is_started_again_by_those_who_read(here: Here) -> None:
    ds = here.dataset("wide")
    loader = forebay.Loader(ds, batch_size=20, seed=1, prefetch_bytes=1 << 20)
    whole = forebay.Loader(here.cluster.direct("wide"), batch_size=20, seed=1)
    (first,) = here.pids()
    seen = []
    for batch in loader:
        if batch.step == 3:
            os.kill(first, signal.SIGKILL)
        seen.append(pa.array(batch["id"]).to_pylist())
    assert seen == ids(whole) and loader.digest == whole.digest
    (second,) = here.pids()
    assert second != first
    # Without a loader, it is started by the next who asks.
    here.kill()
    assert ds.take([7])["id"].to_pylist() == [7]
    assert len(here.pids()) == 1


def test_a_trainer_that_is_killed_leaves_the_node_to_others(
    here: Here, monkeypatch: pytest.MonkeyPatch, table: pa.Table
) -> None:
    monkeypatch.setenv("FOREBAY_IDLE_S", "3")
    trainer = start(pickle.dumps(here.dataset()), "say(len(dataset.head(1))); time.sleep(60)")
    assert trainer.stdout is not None and trainer.stdout.readline() == "1\n"
    (pid,) = here.pids()
    trainer.kill()
    trainer.wait()
    assert here.pids() == [pid]
    assert here.dataset().to_table().equals(table) and here.pids() == [pid]
    until(lambda: not here.pids())


def test_what_a_crash_leaves_behind_is_mended(here: Here, table: pa.Table) -> None:
    here.dataset().load()
    here.kill()
    (stale,) = here.runtime.glob("*.sock")
    before = here.cluster.gets()
    assert here.dataset().to_table().equals(table)
    assert stale.is_socket() and len(here.pids()) == 1
    assert here.cluster.gets() == before, "the segments of the killed node are read again"


def test_other_settings_mean_another_node(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.dataset()
    here.dataset(s3_max_requests=7)
    assert len(here.pids()) == 2
    with pytest.raises(PermissionError):
        here.dataset(s3_secret_access_key="wrong")
    assert len(here.pids()) == 3
    monkeypatch.setenv("AWS_PROFILE", "another")
    with pytest.raises(forebay.DeniedError, match="no profile 'another'"):
        here.dataset()
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another")
    node = here.node()
    assert len(here.pids()) == 4 and node.stop() and len(here.pids()) == 3


def test_the_environment_says_how_it_reads(here: Here, table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    store = here.cluster.store
    monkeypatch.setenv("AWS_ENDPOINT_URL", store["s3_endpoint"])
    monkeypatch.setenv("AWS_REGION", store["s3_region"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", store["s3_access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", store["s3_secret_access_key"])
    loader = forebay.Loader(here.cluster.uri(), batch_size=100, shuffle=None)
    assert [i for batch in ids(loader) for i in batch] == list(range(ROWS))
    monkeypatch.setenv("FOREBAY_ENDPOINT", "local")
    assert forebay.dataset(here.cluster.uri()).to_table().equals(table)
    assert forebay.dataset(here.cluster.uri(), endpoint="local").num_rows == ROWS
    assert len(here.pids()) == 1


def test_it_can_be_bounded_asked_and_stopped(
    here: Here, table: pa.Table, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    node = here.node(cache_bytes="50MB", memory_bytes=32 << 20, idle_s=100, cache_dir=tmp_path)
    status = node.status()
    assert status is not None and [status["pid"]] == here.pids()
    assert (status["cache_bytes_limit"], status["memory_bytes_limit"]) == (50_000_000, 32 << 20)
    assert status["cache_dir"].startswith(f"{tmp_path}/nodes/") and status["version"] == forebay.__version__
    assert f"listening {node.endpoint}" in Path(status["log"]).read_text()
    ds = forebay.dataset(here.cluster.uri(), endpoint=node, segment_bytes=SEGMENT_BYTES)
    assert ds.to_table().equals(table) and here.pids() == [status["pid"]]
    copy = pickle.loads(pickle.dumps(ds))
    assert copy.to_table().equals(table) and pickle.loads(pickle.dumps(node)).endpoint == node.endpoint
    function, (settings, source, _) = node.__reduce__()
    with pytest.raises(forebay.InvalidError, match=r"pickled by forebay 0\.0\.1, .* or call forebay.local_node\(\) there"):
        function(settings, source, "0.0.1")
    with caplog.at_level(logging.WARNING, "forebay"):
        here.node(cache_bytes="60MB", cache_dir=tmp_path)
    assert "stop it to change them" in caplog.text
    del ds, copy
    assert node.stop() is True
    assert node.status() is None and node.stop() is False and here.pids() == []
    node.start()
    assert node.status() is not None and repr(node) == f"<forebay.LocalNode at {node.endpoint}>"


def test_a_folder_that_others_may_enter_is_refused(here: Here) -> None:
    here.runtime.mkdir(mode=0o755)
    with pytest.raises(forebay.DeniedError, match="has mode 755"):
        here.dataset()
    here.runtime.rmdir()
    here.runtime.symlink_to("/tmp")
    with pytest.raises(forebay.DeniedError, match="is no folder"):
        here.dataset()
    here.runtime.unlink()
    if os.getuid() == 0:
        here.runtime.mkdir(mode=0o700)
        os.chown(here.runtime, 12345, -1)
        with pytest.raises(forebay.DeniedError, match="is user 12345's"):
            here.dataset()


def test_why_none_can_be_started_is_told(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(forebay.DeniedError, match="cannot hold a cache.*FOREBAY_CACHE_DIR.*endpoint.*direct"):
        here.node(cache_dir="/dev/null/cache")
    with pytest.raises(forebay.InvalidError, match="less than 1 MiB"):
        here.node(cache_bytes=5)
    with pytest.raises(forebay.InvalidError, match="keywords for a cache node: use a number of bytes"):
        here.node(cache_bytes="much")
    with pytest.raises(TypeError, match="'cache_bites'"):
        here.node(cache_bites=5)
    node = here.node()
    with pytest.raises(forebay.InvalidError, match=r"pass them to forebay.local_node\(\)"):
        forebay.dataset(here.cluster.uri(), endpoint=node, s3_region="x")
    node.stop()
    program = here.root / "forebay-server"
    program.write_text("#!/bin/sh\necho 'no luck today' >&2\nexit 3\n")
    monkeypatch.setenv("FOREBAY_SERVER", str(program))
    with pytest.raises(forebay.InvalidError, match="there is no such program"):
        here.dataset()
    program.chmod(0o755)
    with pytest.raises(forebay.DeniedError, match="no luck today.*direct"):
        here.dataset()
    assert here.cluster.direct().num_rows == ROWS, "no node is needed for that"
