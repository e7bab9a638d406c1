"""Functions of batches in threads: values, order, state, errors, and the end of the threads."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import traceback
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from conftest import Cluster
from test_loader import Reading
from test_process import hear, start

import forebay
from forebay._transform import Task, Threads

SETTINGS: dict[str, Any] = {"global_batch": 50, "seed": 3, "shuffle": 2, "columns": ["id", "x"]}
STEPS = 12


def rows_of(batch: forebay.Batch) -> tuple[int, list[int], list[float]]:
    return batch.step, pa.array(batch["id"]).to_pylist(), pa.array(batch["x"]).to_pylist()


def late_if_even(batch: forebay.Batch) -> tuple[int, list[int], list[float]]:
    """So that batches become ready in another order than theirs."""
    time.sleep(0.02 if batch.step % 2 == 0 else 0)
    return rows_of(batch)


def transform_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("forebay-transform")]


def wait_for_the_end_of_threads() -> None:
    until = time.monotonic() + 10
    while transform_threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert not transform_threads()


@pytest.mark.parametrize(("threads", "prefetch"), [(1, 1), (2, 4), (4, 3)])
def test_results_come_in_the_order_of_the_batches(
    cluster: Cluster, table: pa.Table, threads: int, prefetch: int
) -> None:
    plain = forebay.Loader(cluster.dataset(), **SETTINGS)
    with forebay.Loader(
        cluster.dataset(), transform=late_if_even, threads=threads, prefetch=prefetch, **SETTINGS
    ) as loader:
        for _ in range(2):
            expected = [rows_of(batch) for batch in plain]
            assert list(loader) == expected and len(expected) == STEPS
            assert loader.digest == plain.digest and loader.epoch == plain.epoch
    for _, ids, xs in expected:
        assert xs == table.take(ids)["x"].to_pylist()
    wait_for_the_end_of_threads()


def test_no_more_batches_are_ahead_than_asked_for(cluster: Cluster) -> None:
    begun: list[int] = []

    def note(batch: forebay.Batch) -> int:
        begun.append(batch.step)
        return batch.step

    loader = forebay.Loader(cluster.dataset(), transform=note, threads=3, prefetch=3, **SETTINGS)
    for step in loader:
        time.sleep(0.02)
        # The one in hand and two more.
        assert max(begun) <= step + 2
    assert begun and sorted(begun) == list(range(STEPS))
    loader.close()


@pytest.mark.parametrize("stop", range(1, STEPS + 1))
def test_the_state_is_that_of_the_batch_in_hand(cluster: Cluster, stop: int) -> None:
    plain = forebay.Loader(cluster.dataset(), **SETTINGS)
    expected = [rows_of(batch)[1] for _ in range(2) for batch in plain]
    with forebay.Loader(cluster.dataset(), transform=late_if_even, **SETTINGS) as loader:
        done = [ids for _, (_, ids, _) in zip(range(stop), loader, strict=False)]
        state = loader.state_dict()
    with forebay.Loader(cluster.dataset(), transform=late_if_even, **SETTINGS) as resumed:
        resumed.load_state_dict(state)
        assert (resumed.epoch, resumed.steps_left) == ((0, STEPS - stop) if stop < STEPS else (1, STEPS))
        done += [ids for _ in range(2 if stop < STEPS else 1) for _, ids, _ in resumed]
    assert done == expected


@pytest.mark.parametrize("held", [0, 5, STEPS - 1])
def test_a_second_thread_is_refused_and_the_first_goes_on(cluster: Cluster, held: int) -> None:
    """Also where batches are ready that the second one could take."""
    begun, go = threading.Event(), threading.Event()

    def hold(batch: forebay.Batch) -> int:
        if batch.step == held:
            begun.set()
            assert go.wait(10)
        return batch.step

    with forebay.Loader(cluster.dataset(), transform=hold, **SETTINGS) as loader:
        batches = iter(loader)
        reading = Reading(batches)
        assert begun.wait(10)
        until = time.monotonic() + 10
        while len(reading.got) < held and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.05)
        state = loader.state_dict()
        for _ in range(3):
            with pytest.raises(forebay.InvalidError, match="another thread is reading from this loader: let one thread"):
                next(batches)
        assert loader.state_dict() == state and loader.steps_left == STEPS - held
        go.set()
        reading.join(30)
        assert reading.raised is None and reading.got == list(range(STEPS))
        assert loader.epoch == 1 and loader.stats()["batches"] == STEPS
        assert next(batches, None) is None


@pytest.mark.parametrize("way", ["close", "set_epoch", "load_state_dict"])
def test_another_thread_ends_a_wait_for_a_transform(cluster: Cluster, way: str) -> None:
    """At once, though the transform runs on."""
    begun, go = threading.Event(), threading.Event()

    def hold(batch: forebay.Batch) -> int:
        if (batch.epoch, batch.step) == (0, 3):
            begun.set()
            assert go.wait(30)
        return batch.step

    with forebay.Loader(cluster.dataset(), transform=hold, **SETTINGS) as loader:
        calls: dict[str, Any] = {"close": (), "set_epoch": (2,), "load_state_dict": (loader.state_dict(),)}
        reading = Reading(iter(loader))
        assert begun.wait(10)
        time.sleep(0.05)
        getattr(loader, way)(*calls[way])
        reading.join(5)
        assert not reading.is_alive() and reading.got == [0, 1, 2]
        told = "this loader is closed" if way == "close" else "another iteration over this loader began"
        assert isinstance(reading.raised, forebay.ClosedError) and told in str(reading.raised)
        go.set()
        if way != "close":
            assert loader.epoch == (2 if way == "set_epoch" else 0) and list(loader) == list(range(STEPS))
    wait_for_the_end_of_threads()


def test_figures_of_what_is_ahead(cluster: Cluster) -> None:
    with forebay.Loader(cluster.dataset(), transform=late_if_even, prefetch=4, **SETTINGS) as loader:
        assert loader.stats() == {"batches": 0, "rows": 0, "wait_s": 0.0, "ahead": 0}
        seen = [loader.stats() for _ in loader]
        assert [figures["batches"] for figures in seen] == list(range(1, STEPS + 1))
        assert all(figures["ahead"] <= 3 for figures in seen) and any(figures["ahead"] for figures in seen)
        assert seen[-1]["rows"] == STEPS * 50 and seen[-1]["wait_s"] > 0.02 and seen[-1]["ahead"] == 0


def broken(batch: forebay.Batch) -> int:
    if batch.step == 5:
        raise ZeroDivisionError("no such thing")
    return batch.step


def test_what_a_transform_raises_comes_with_its_own_traceback(cluster: Cluster) -> None:
    plan = forebay.Loader(cluster.dataset(), **SETTINGS).plan()
    loader = forebay.Loader(cluster.dataset(), transform=broken, **SETTINGS)
    seen: list[int] = []
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="no such thing") as raised:
            seen.extend(loader)
        told = "".join(traceback.format_exception(raised.value))
        assert "in broken" in told and "epoch 0, step 5, samples " in told
        assert ", ".join(map(str, plan[5][:32])) + " and 18 more" in told
        assert (loader.epoch, loader.steps_left) == (0, STEPS - 5), "it stands before that batch"
    assert seen == list(range(5))
    loader.close()
    del raised
    wait_for_the_end_of_threads()


class NoNotes(Exception):
    def add_note(self, note: str) -> None:
        raise TypeError("no notes")


@pytest.mark.parametrize("kind", [NoNotes, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_whatever_a_transform_raises_comes_out(cluster: Cluster, kind: type[BaseException]) -> None:
    """And its thread goes on: a second try fails in the same way, and does not hang."""

    def raises(batch: forebay.Batch) -> int:
        raise kind("no such thing")

    with forebay.Loader(cluster.dataset(), transform=raises, threads=1, **SETTINGS) as loader:
        for _ in range(2):
            raised: list[BaseException] = []

            def read() -> None:
                try:
                    next(iter(loader))
                except BaseException as e:
                    raised.append(e)

            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            reader.join(10)
            assert [type(e) for e in raised] == [kind]


@pytest.mark.parametrize("pause", [0.0, 0.5])
def test_a_forked_child_is_refused_at_once(cluster: Cluster, pause: float) -> None:
    """Whether batches that are ahead are on their way through the transform, or done; at the end of an epoch all are ahead."""

    def slow(batch: forebay.Batch) -> int:
        time.sleep(0.2 if batch.step >= STEPS - 2 else 0)
        return batch.step

    with forebay.Loader(cluster.dataset(), transform=slow, threads=1, prefetch=3, **SETTINGS) as loader:
        batches = iter(loader)
        assert [next(batches) for _ in range(STEPS - 2)] == list(range(STEPS - 2))
        time.sleep(pause)
        child = os.fork()
        if child == 0:
            # Ends it, should it hang.
            signal.alarm(10)
            try:
                next(batches)
            except forebay.ClosedError as e:
                os._exit(0 if "forkserver" in str(e) else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert list(batches) == [STEPS - 2, STEPS - 1]


def test_an_end_of_iteration_within_a_transform_is_no_end_of_the_epoch(cluster: Cluster) -> None:
    with forebay.Loader(cluster.dataset(), transform=lambda batch: next(iter(())), **SETTINGS) as loader:
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            list(loader)


def test_an_epoch_that_is_left_early_drops_what_was_ahead(cluster: Cluster) -> None:
    whole = [rows_of(batch) for batch in forebay.Loader(cluster.dataset(), **SETTINGS)]
    with forebay.Loader(cluster.dataset(), transform=late_if_even, **SETTINGS) as loader:
        assert next(iter(loader)) == whole[0]
        loader.set_epoch(0)
        assert list(loader) == whole


def test_threads_end_with_a_loader_that_is_dropped(cluster: Cluster) -> None:
    loader = forebay.Loader(cluster.dataset(), transform=late_if_even, **SETTINGS)
    next(iter(loader))
    assert transform_threads()
    del loader
    gc.collect()
    wait_for_the_end_of_threads()


def test_threads_that_could_not_be_started_are_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    really, tries = threading.Thread.start, iter([True, False])

    def start(thread: threading.Thread) -> None:
        if not next(tries, True):
            raise RuntimeError("no more threads")
        really(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    threads, batch = Threads(2), cast(forebay.Batch, SimpleNamespace(samples_done=1, real_rows=1))
    with pytest.raises(RuntimeError, match="no more threads"):
        threads.start(Task(batch, lambda batch: batch.samples_done + 1))
    task = threads.start(Task(batch, lambda batch: batch.samples_done + 1))
    assert [thread.is_alive() for thread in threads.threads] == [True, True] and task.result() == 2
    threads.close()
    wait_for_the_end_of_threads()


def test_bad_settings(cluster: Cluster) -> None:
    for wrong in ["threads", "prefetch"]:
        settings: dict[str, Any] = {wrong: 0, **SETTINGS}
        with pytest.raises(forebay.InvalidError, match="at least 1"):
            forebay.Loader(cluster.dataset(), transform=rows_of, **settings)


SLOW = """
def slow(batch):
    say("blocked")
    time.sleep(20)
with forebay.Loader(dataset, batch_size=20, transform=slow, threads=1) as slow_loader:
    try:
        next(iter(slow_loader))
    except KeyboardInterrupt:
        say("interrupted")
"""


def test_ctrl_c_ends_a_wait_for_a_transform(cluster: Cluster) -> None:
    process = start(cluster, SLOW)
    assert hear(process) == "blocked"
    time.sleep(0.2)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert hear(process) == "interrupted"
    assert time.monotonic() - sent < 1
    assert process.wait(timeout=10) == 0
    assert process.stderr is not None and process.stderr.read() == ""
