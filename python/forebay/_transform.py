"""Functions of batches in threads: results in the order of the batches, cancelled with their loader."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from forebay._errors import ClosedError
from forebay._forebay import Batch

T = TypeVar("T")

# How many sample numbers of a batch are told when its transform failed.
_TOLD_IDS = 32

# How long the end of the interpreter waits for transforms that are running.
_EXIT_S = 1.0


class Task(Generic[T]):
    """One batch on its way through a function."""

    def __init__(self, batch: Batch, function: Callable[[Batch], T]) -> None:
        self.samples_done, self.rows = batch.samples_done, batch.real_rows
        self._work: tuple[Batch, Callable[[Batch], T]] | None = (batch, function)
        self._done = threading.Event()
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._is_cancelled = False

    def run(self) -> None:
        work, self._work = self._work, None
        try:
            if work is not None:
                self._result.append(work[1](work[0]))
        except BaseException as e:
            self._error = e
            if work is not None:
                # An exception may be of any make: one that takes no notes goes without.
                with suppress(Exception):
                    e.add_note(_whereabouts(work[0]))
        finally:
            del work
            self._done.set()

    def cancel(self) -> None:
        """It does not begin any more; if it has begun, its result is dropped. A thread that waits for it waits no longer."""
        self._work, self._is_cancelled = None, True
        self._done.set()

    def result(self) -> T:
        """Waits for it; signals end the wait. Raises what the function raised, with its own traceback, and `ClosedError` if
        it was cancelled."""
        self._done.wait()
        if self._is_cancelled:
            raise ClosedError("this batch was dropped: its loader was closed, or placed elsewhere")
        if self._error is not None:
            error, self._error = self._error, None
            try:
                if isinstance(error, StopIteration):
                    # It would end the epoch without a word.
                    raise RuntimeError("transform= raised StopIteration") from error
                raise error
            finally:
                del error
        return self._result.pop()


def _whereabouts(batch: Batch) -> str:
    ids = ", ".join(map(str, batch.first_ids(_TOLD_IDS)))
    more = f" and {len(batch) - _TOLD_IDS} more" if len(batch) > _TOLD_IDS else ""
    return f"forebay: the batch of epoch {batch.epoch}, step {batch.step}, samples {ids}{more}"


class Threads:
    """Threads that run tasks, in the order in which they were started. They end when this is closed or dropped."""

    def __init__(self, threads: int) -> None:
        self._count = threads
        self._work: SimpleQueue[Task[Any] | None] = SimpleQueue()
        self.threads: list[threading.Thread] = []
        self._end = weakref.finalize(self, _end, self._work, threads)
        self._end.atexit = False

    def start(self, task: Task[T]) -> Task[T]:
        _live.add(self)
        # Also those that could not be started before.
        for number in range(len(self.threads), self._count):
            name = f"forebay-transform-{number}"
            # Daemons: a transform that hangs must not keep the interpreter from its end.
            thread = threading.Thread(target=_serve, args=[self._work], name=name, daemon=True)
            thread.start()
            self.threads.append(thread)
        self._work.put(task)
        return task

    def close(self) -> None:
        """Ends the threads, each after the transform that it is running."""
        self._end()


_live: weakref.WeakSet[Threads] = weakref.WeakSet()


def _serve(work: SimpleQueue[Task[Any] | None]) -> None:
    while (task := work.get()) is not None:
        task.run()
        # Results are their owner's alone.
        del task


def _end(work: SimpleQueue[Task[Any] | None], threads: int) -> None:
    for _ in range(threads):
        work.put(None)


@atexit.register
def _end_all() -> None:
    """Threads that are still within torch when the interpreter ends would tear it down."""
    until = time.monotonic() + _EXIT_S
    live = list(_live)
    for threads in live:
        threads.close()
    for threads in live:
        for thread in threads.threads:
            thread.join(max(0.0, until - time.monotonic()))
