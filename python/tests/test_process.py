"""What becomes of a run when its process is interrupted, killed or forked, or a node dies under it."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import ROWS, SEGMENT_BYTES, Cluster

import forebay

BATCH = 20
PREFETCH_BYTES = 1 << 20


@pytest.fixture
def own(data: Path) -> Iterator[Cluster]:
    """Two nodes that this test may kill."""
    cluster = Cluster(data, 2)
    yield cluster
    cluster.stop()


def start(cluster: Cluster, script: str, data: str = "rows") -> subprocess.Popen[str]:
    """A process that runs a script with `dataset` and `loader`, and says lines."""
    head = f"""
import json, signal, sys, time
import forebay
# Where the tests themselves run in the background, interrupts are ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
dataset = forebay.dataset({cluster.uri(data)!r}, endpoint={cluster.endpoint!r}, segment_bytes={SEGMENT_BYTES})
loader = forebay.Loader(dataset, batch_size={BATCH}, seed=1, shuffle=2, prefetch_bytes={PREFETCH_BYTES})
def say(what): print(json.dumps(what), flush=True)
"""
    command = [sys.executable, "-c", head + script]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def hear(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr else ""
    return json.loads(line)


BLOCKED = """
batches = iter(loader)
next(batches)
say("reading")
assert sys.stdin.readline()
say("blocked")
try:
    for batch in batches: pass
except KeyboardInterrupt:
    say("interrupted")
"""


def test_ctrl_c_ends_a_blocked_next(own: Cluster) -> None:
    process = start(own, BLOCKED, "wide")
    assert hear(process) == "reading"
    own.kill(0)
    own.kill(1)
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert hear(process) == "blocked"
    time.sleep(1)
    assert process.poll() is None, "it waits for nodes to come back"
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert hear(process) == "interrupted"
    assert time.monotonic() - sent < 1
    assert process.wait(timeout=10) == 0


def test_a_node_that_dies_is_no_error(own: Cluster) -> None:
    loader = forebay.Loader(own.dataset("wide"), batch_size=BATCH, seed=1, prefetch_bytes=PREFETCH_BYTES)
    whole = forebay.Loader(own.direct("wide"), batch_size=BATCH, seed=1)
    seen = []
    for batch in loader:
        if batch.step == 3:
            own.kill(1)
        seen.append(pa.array(batch["id"]).to_pylist())
    assert seen == [pa.array(batch["id"]).to_pylist() for batch in whole] and loader.digest == whole.digest


def test_without_any_node_patience_ends(own: Cluster) -> None:
    loader = forebay.Loader(own.dataset("wide"), batch_size=BATCH, prefetch_bytes=PREFETCH_BYTES, patience_s=10)
    batches = iter(loader)
    next(batches)
    own.kill(0)
    own.kill(1)
    state = loader.state_dict()
    with pytest.raises(forebay.RetryError):
        for _ in batches:
            state = loader.state_dict()
    assert loader.state_dict() == state, "it would go on with the batch that did not come"


KILLED = """
import pyarrow
state = json.loads(sys.stdin.readline())
if state: loader.load_state_dict(state)
while True:
    for batch in loader:
        say([pyarrow.array(batch["id"]).to_pylist(), loader.state_dict()])
        time.sleep(0.02)
"""

# How often; 50 is what was promised.
KILLS = int(os.environ.get("FOREBAY_TEST_KILLS", "4"))


def test_killed_in_mid_epoch_and_started_again_at_once(cluster: Cluster) -> None:
    """SIGKILL wherever it hits, again and again: the steps are those of a run that was never killed."""
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    seen: list[list[int]] = []
    state = None
    for kill in range(KILLS + 1):
        process = start(cluster, KILLED)
        assert process.stdin is not None
        process.stdin.write(json.dumps(state) + "\n")
        process.stdin.flush()
        for _ in range(draw.randint(1, 7)):
            rows, state = hear(process)
            seen.append(rows)
        # Between two batches, or within one; lines that nobody has read are lost with it.
        time.sleep(draw.random() * 0.05)
        process.kill()
        if kill % 2:
            process.wait()
    whole = forebay.Loader(cluster.dataset(columns=["id"]), batch_size=BATCH, seed=1, shuffle=2)
    expected: list[list[int]] = []
    while len(expected) < len(seen):
        expected += [pa.array(batch["id"]).to_pylist() for batch in whole]
    assert seen == expected[: len(seen)], f"seed {seed}"


def in_child(ds: forebay.Dataset, out: Any) -> None:
    try:
        out.put(len(ds.take([0, 1])))
    except forebay.Error as e:
        out.put((type(e).__name__, str(e)))


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_processes_work_or_are_refused_with_advice(cluster: Cluster, method: Any) -> None:
    ds = cluster.dataset(columns=["id"])
    context = multiprocessing.get_context(method)
    out = context.Queue()
    child = context.Process(target=in_child, args=(ds, out))
    child.start()
    said = out.get(timeout=60)
    child.join(timeout=30)
    assert child.exitcode == 0
    if method == "fork":
        assert said[0] == "ClosedError" and "forkserver" in said[1]
    else:
        assert said == 2


def test_a_fork_harms_neither_side(cluster: Cluster) -> None:
    """A child that inherits a live loader, tries it and drops it, ends well; the parent goes on."""
    loader = forebay.Loader(cluster.dataset(columns=["id"]), batch_size=BATCH)
    count = 0
    for _ in loader:
        count += 1
        if count in (1, 5, 9):
            child = os.fork()
            if child == 0:
                refused = 1
                try:
                    next(iter(loader))
                except forebay.ClosedError:
                    refused = 0
                try:
                    forebay.dataset(cluster.uri(), endpoint=cluster.endpoint)
                    refused = 1
                except forebay.ClosedError:
                    pass
                del loader
                os._exit(refused)
            assert os.waitpid(child, 0)[1] == 0
    assert count == ROWS // BATCH


def test_other_threads_run_while_one_waits(own: Cluster) -> None:
    loader = forebay.Loader(own.dataset("wide"), batch_size=BATCH, prefetch_bytes=PREFETCH_BYTES, patience_s=8)
    batches = iter(loader)
    next(batches)
    own.kill(0)
    own.kill(1)
    failed: list[str] = []

    def read() -> None:
        try:
            list(batches)
        except forebay.RetryError as e:
            failed.append(str(e))

    thread = threading.Thread(target=read)
    thread.start()
    ticks = 0
    while thread.is_alive():
        time.sleep(0.01)
        ticks += 1
    assert failed and ticks > 260


def test_a_process_ends_with_a_live_loader(cluster: Cluster) -> None:
    process = start(cluster, "batches = iter(loader)\nnext(batches)\n")
    out, errors = process.communicate(timeout=30)
    assert (process.returncode, out, errors) == (0, "", "")


def test_loaders_are_not_pickled(cluster: Cluster) -> None:
    with pytest.raises(TypeError, match="state_dict"):
        pickle.dumps(forebay.Loader(cluster.dataset(), batch_size=10))


def own_bytes() -> int:
    """Memory of this process. Pages of files do not count: those that a node lends are the kernel's cache, mapped."""
    status = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in status if line.startswith(("RssAnon:", "RssShmem:")))


def test_memory_stays_flat(cluster: Cluster) -> None:
    """Epochs of 60 MB each, a part of every batch kept in hand while the next ones come."""
    loader = forebay.Loader(cluster.dataset("wide"), batch_size=BATCH, prefetch_bytes=4 << 20)
    after = []
    for _ in range(6):
        for batch in loader:
            assert len(batch["blob"].values()) == BATCH
        after.append(own_bytes())
    assert max(after) - after[1] < 30 << 20, after


def held() -> tuple[int, int]:
    """Threads and open files of this process."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def test_loaders_dropped_half_way_leave_nothing(cluster: Cluster) -> None:
    """200 that are dropped with batches ready and on their way: no thread, file or memory of theirs stays."""
    ds = cluster.dataset("wide")

    def drop_some(count: int) -> None:
        for seed in range(count):
            options: Any = {"transform": len} if seed % 2 else {}
            loader: Any = forebay.Loader(ds, batch_size=5, seed=seed, prefetch_bytes=PREFETCH_BYTES, **options)
            next(iter(loader))

    def settled() -> tuple[int, int]:
        """Threads and files that are left once streams and threads have ended, which takes a moment."""
        seen = []
        for _ in range(20):
            time.sleep(0.1)
            seen.append(held())
        return min(threads for threads, _ in seen), min(files for _, files in seen)

    drop_some(20)
    before, bytes_before = settled(), own_bytes()
    drop_some(200)
    after, bytes_after = settled(), own_bytes()
    assert after[0] <= before[0] + 2 and after[1] <= before[1] + 5, (before, after)
    assert bytes_after - bytes_before < 40 << 20, (bytes_before, bytes_after)
