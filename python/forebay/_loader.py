"""The loader: one rank's batches of a dataset, epoch after epoch, in an order that is exact and resumes exactly."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypedDict, TypeVar, Unpack, overload

from forebay._dataset import Dataset, DatasetName
from forebay._errors import ClosedError, InvalidError
from forebay._forebay import Batch, BatchReader
from forebay._numbers import whole
from forebay._run import Run, RunOptions
from forebay._transform import Task, Threads

T = TypeVar("T")


class LoaderStats(TypedDict):
    """What a loader has handed out since it was made, in all epochs together."""

    batches: int
    rows: int
    """Padding left out."""
    wait_s: float
    """Seconds that the loop has waited for batches: for rows, transforms and images. A copy to a CUDA device is waited for
    there, and does not count."""
    ahead: int
    """Batches that are within the transform, or done and waiting; 0 where batches are not made in threads."""


class _Stream(Generic[T]):
    """Batches from one place on, and what becomes of them. One thread takes them at a time; any may close it."""

    def __init__(self, reader: BatchReader) -> None:
        self.reader = reader
        # Held by the thread that takes a batch.
        self.taking = threading.Lock()
        # Batches within the transform, in order, and the one that is waited for.
        self.ahead: deque[Task[T]] = deque()
        self._awaited: Task[T] | None = None
        self._is_closed = False

    def take(self, make: Callable[[Batch], T], threads: Threads | None, ahead: int) -> tuple[int, int, T] | None:
        """The samples that are done after the next batch, its rows without padding, and what became of it; None at an
        epoch's end."""
        if threads is None:
            batch = self.reader.next()
            return None if batch is None else (batch.samples_done, batch.real_rows, make(batch))
        # Threads do not come along through fork(): there a batch that is on its way would never be done.
        self.reader.check_process()
        while len(self.ahead) < ahead:
            batch = self.reader.next(wait=not self.ahead)
            if batch is None:
                break
            self.ahead.append(threads.start(Task(batch, make)))
        try:
            task = self._awaited = self.ahead.popleft()
        except IndexError:
            return None
        if self._is_closed:
            # Tasks that were started since are nobody's.
            self._cancel()
        try:
            return task.samples_done, task.rows, task.result()
        finally:
            self._awaited = None

    def close(self) -> None:
        """Ends the reading; a thread that waits for a batch gets a `ClosedError`."""
        self._is_closed = True
        self._cancel()
        self.reader.close()

    def _cancel(self) -> None:
        with suppress(IndexError):
            while True:
                self.ahead.popleft().cancel()
        awaited = self._awaited
        if awaited is not None:
            awaited.cancel()


class BatchLoader(Run, Generic[T]):
    """What all loaders have in common; what a batch becomes is up to `_convert` and the transform."""

    def __init__(
        self,
        dataset: Dataset | DatasetName,
        *,
        transform: Callable[[Any], Any] | None = None,
        threads: int = 2,
        prefetch: int = 4,
        ahead: bool = False,
        **options: Unpack[RunOptions],
    ) -> None:
        """With `ahead`, batches are converted in threads even if there is no transform."""
        threads, prefetch = whole("threads", threads, least=1, bits=16), whole("prefetch", prefetch, least=1)
        super().__init__(dataset, **options)
        self._transform = transform
        self._threads = Threads(threads) if ahead or transform is not None else None
        self._prefetch = prefetch
        self._stream: _Stream[T] | None = None
        self._closed = False
        # As `LoaderStats` has them.
        self._batches, self._rows, self._wait_s = 0, 0, 0.0
        # A CUDA device that copies batches straight from the loader's memory.
        self._cuda: int | None = None
        self._digest: str | None = None

    def _convert(self, batch: Batch) -> Any:
        raise NotImplementedError

    def _transformed(self, batch: Batch) -> T:
        converted = self._convert(batch)
        result: T = converted if self._transform is None else self._transform(converted)
        return result

    def _received(self, made: T) -> T:
        """What the loop gets for what `_transformed` made, in the loop's own thread."""
        return made

    def __iter__(self) -> Iterator[T]:
        """One epoch: that of `set_epoch`, the rest of one that was resumed, or the one after the last.

        Raises `ClosedError` if the loader is closed, `InvalidError` if the run's `epochs` are over or this process has
        another rank than when the loader was made; and whatever the dataset's cache raises where reading begins.
        """
        with self._moving:
            if self._closed:
                raise self._gone()
            turn = self._begin()
            if self._stream is not None and self._stream.taking.locked():
                # Another thread waits for a batch that belongs to this iteration now.
                self._end_stream()
                self._place(self._at(self._epoch, self._samples_done))
            if self._stream is None:
                self._stream = _Stream(self._settings.read(self.data._core, cuda=self._cuda))
            return _Epoch(self, turn)

    @property
    def digest(self) -> str | None:
        """The order digest of what this rank read of the last epoch that was read to its end, in hexadecimal digits; None
        before that."""
        return self._digest

    def stats(self) -> LoaderStats:
        """What was handed out since the loader was made, and how long the loop has waited for it. Any thread may ask."""
        with self._moving:
            ahead = 0 if self._stream is None else len(self._stream.ahead)
            return {"batches": self._batches, "rows": self._rows, "wait_s": self._wait_s, "ahead": ahead}

    def _next(self, epoch: _Epoch[T]) -> tuple[T] | None:
        """The next batch of an iteration; None at its end."""
        with self._moving:
            stream = self._stream
            if epoch.turn != self._turn or stream is None:
                raise self._gone()
            # In one step with that: else an iteration that begins in between would lose this batch.
            is_taking = stream.taking.acquire(blocking=False)
        if not is_taking:
            stream.reader.check_process()
            raise InvalidError(
                "another thread is reading from this loader: let one thread read and hand its batches on, or make a loader "
                "for each thread"
            )
        try:
            # Another thread may have had the last one just now.
            return None if epoch.is_over else self._taken(epoch, stream)
        finally:
            stream.taking.release()
            if stream is not self._stream:
                # Who closed it could not while it was read from.
                stream.reader.close()

    def _taken(self, epoch: _Epoch[T], stream: _Stream[T]) -> tuple[T] | None:
        before = self._epoch, self._samples_done
        try:
            began = time.monotonic()
            taken = stream.take(self._transformed, self._threads, min(self._prefetch, self._steps_left))
            waited_s = time.monotonic() - began
            received = None if taken is None else (self._received(taken[2]),)
            if taken is not None and self._steps_left == 1:
                stream.reader.next()
            with self._moving:
                if epoch.turn != self._turn:
                    raise self._gone()
                self._wait_s += waited_s
                epoch.is_over = taken is None or self._handed_out(taken[0], taken[1], stream.reader)
            return received
        except BaseException as e:
            with self._moving:
                is_current = epoch.turn == self._turn
                if is_current:
                    # Reading is over, interrupts included. Another iteration begins at the batch that did not come.
                    self._stop()
                    self._place(self._at(*before))
            if is_current or not isinstance(e, Exception):
                raise
            raise self._gone() from None

    def _handed_out(self, samples_done: int, rows: int, reader: BatchReader) -> bool:
        """Counts a batch; says whether it was the epoch's last."""
        self._batches, self._rows = self._batches + 1, self._rows + rows
        is_last = self._step(samples_done)
        if is_last:
            ended = reader.ended
            self._digest = ended[1] if ended is not None else None
        return is_last

    def _gone(self) -> ClosedError:
        if self._closed:
            return ClosedError("this loader is closed: make a new one")
        return ClosedError("another iteration over this loader began, or it was placed elsewhere: iterate again")

    def _stop(self) -> None:
        super()._stop()
        self._end_stream()

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def close(self) -> None:
        """Ends the streams, and the threads of the transform. Batches that were handed out stay as they are. Any thread may
        call it: one that waits for a batch gets a `ClosedError`."""
        with self._moving:
            self._closed = True
            self._stop()
        if self._threads is not None:
            self._threads.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Epoch(Iterator[T]):
    """One iteration of a loader."""

    def __init__(self, loader: BatchLoader[T], turn: int) -> None:
        self._loader: BatchLoader[T] | None = loader
        self.turn = turn
        self.is_over = False

    def __next__(self) -> T:
        loader = self._loader
        batch = None if loader is None else loader._next(self)
        if self.is_over:
            self._loader = None
        if batch is None:
            raise StopIteration
        return batch[0]


class Loader(BatchLoader[T]):
    """Batches as Arrow: columns by name (`batch["x"]`), whole to any reader of Arrow (`pyarrow.record_batch(batch)`).

    The keywords are those of `forebay.RunOptions`. With `transform`, a function of a batch, its results come in place of
    the batches, in their order: it runs in `threads` threads for at most `prefetch` batches at a time, ahead of the one
    that is handed out. What it raises is raised where its batch would come, and the run stands before that batch.

    Making one raises `InvalidError` for keywords that make no sense or do not fit the dataset, `TypeError` for unknown ones,
    and what `forebay.dataset` raises. Iterating raises `RetryError` if rows fail to come for `patience_s`, `CorruptError` for
    damaged data, `ChangedError` if an object was overwritten, `DeniedError` and `NotFoundError` as S3 answers,
    `ClosedError` after `close`, once another iteration began, and in a forked process; and `InvalidError` in a thread that
    asks for a batch while another one waits for its own. After an error the run stands before the batch that did not come.
    """

    @overload
    def __init__(
        self: Loader[Batch],
        dataset: Dataset | DatasetName,
        *,
        transform: None = None,
        threads: int = 2,
        prefetch: int = 4,
        **options: Unpack[RunOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        dataset: Dataset | DatasetName,
        *,
        transform: Callable[[Batch], T],
        threads: int = 2,
        prefetch: int = 4,
        **options: Unpack[RunOptions],
    ) -> None: ...
    def __init__(
        self,
        dataset: Dataset | DatasetName,
        *,
        transform: Callable[[Batch], T] | None = None,
        threads: int = 2,
        prefetch: int = 4,
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__(dataset, transform=transform, threads=threads, prefetch=prefetch, **options)

    def _convert(self, batch: Batch) -> Batch:
        return batch


Loader.__module__ = "forebay"
