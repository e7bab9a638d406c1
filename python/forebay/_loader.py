"""The loader: one rank's batches of a dataset, epoch after epoch, in an order that is exact and resumes exactly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from forebay._dataset import Dataset, DatasetName
from forebay._errors import ClosedError
from forebay._forebay import Batch, BatchReader
from forebay._numbers import whole
from forebay._run import Run, RunOptions
from forebay._transform import Task, Threads

T = TypeVar("T")


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
        # Batches within the transform, in order.
        self._ahead: deque[Task[T]] = deque()
        self._reader: BatchReader | None = None
        self._closed = False
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
        """One epoch: that of `set_epoch`, the rest of one that was resumed, or the one after the last."""
        if self._closed:
            raise ClosedError("this loader is closed: make a new one")
        turn = self._begin()
        if self._reader is None:
            self._reader = self._settings.read(self.data._core, cuda=self._cuda)
        return _Epoch(self, turn)

    @property
    def digest(self) -> str | None:
        """The order digest of what this rank read of the last epoch that was read to its end."""
        return self._digest

    def _next(self, turn: int) -> tuple[T, bool] | None:
        """The next batch of an iteration, and whether it is the last; None for an epoch without steps."""
        if self._closed:
            raise ClosedError("this loader is closed: make a new one")
        if turn != self._turn or self._reader is None:
            raise ClosedError("another iteration over this loader began, or it was placed elsewhere: iterate again")
        before = self._epoch, self._samples_done
        try:
            step = self._pull(self._reader)
            if step is None:
                return None
            is_last = self._step(step[0])
            if is_last:
                self._reader.next()
                ended = self._reader.ended
                self._digest = ended[1] if ended is not None else None
            return self._received(step[1]), is_last
        except BaseException:
            # Reading is over, interrupts included. Another iteration begins at the batch that did not come.
            self._stop()
            self._place(self._at(*before))
            raise

    def _pull(self, reader: BatchReader) -> tuple[int, T] | None:
        """The samples that are done after the next batch, and what became of it."""
        if self._threads is None:
            batch = reader.next()
            return None if batch is None else (batch.samples_done, self._transformed(batch))
        # Threads do not come along through fork(): there a batch that is on its way would never be done.
        reader.check_process()
        while len(self._ahead) < min(self._prefetch, self._steps_left):
            batch = reader.next(wait=not self._ahead)
            if batch is None:
                break
            self._ahead.append(self._threads.start(Task(batch, self._transformed)))
        if not self._ahead:
            return None
        task = self._ahead.popleft()
        return task.samples_done, task.result()

    def _stop(self) -> None:
        super()._stop()
        for task in self._ahead:
            task.cancel()
        self._ahead.clear()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def close(self) -> None:
        """Ends the streams, and the threads of the transform. Batches that were handed out stay as they are."""
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
        self._turn = turn

    def __next__(self) -> T:
        if self._loader is None:
            raise StopIteration
        step = self._loader._next(self._turn)
        if step is None or step[1]:
            self._loader = None
        if step is None:
            raise StopIteration
        return step[0]


class Loader(BatchLoader[T]):
    """Batches as Arrow: columns by name (`batch["x"]`), whole to any reader of Arrow (`pyarrow.record_batch(batch)`).

    The keywords are those of `forebay.RunOptions`. With `transform`, a function of a batch, its results come in place of
    the batches, in their order: it runs in `threads` threads for at most `prefetch` batches at a time, ahead of the one
    that is handed out. What it raises is raised where its batch would come, and the run stands before that batch.
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
