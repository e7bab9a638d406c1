"""The loader's batches for `torch.utils.data.DataLoader`, with worker processes too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NotRequired, TypedDict, Unpack

import torch
import torch.utils.data

from forebay._dataset import Dataset, DatasetName
from forebay._errors import CorruptError, InvalidError
from forebay._run import State, check_epoch
from forebay._sharding import refuse_sharding
from forebay._torch_loader import Batch, Loader, LoaderOptions


_OF_LOADERS = ("transform", "device")
"""Keywords that make something else of a batch than a worker process has to hand over."""


class IterableState(TypedDict):
    """Where an iteration stands: from where it began, and how many batches this process has given of it since, of how many
    rows on all ranks together."""

    began: State
    batches: int
    workers: int
    global_batch: NotRequired[int]


class IterableDataset(torch.utils.data.IterableDataset[Batch]):
    """Whole batches of one rank, for a `DataLoader` or torchdata's `StatefulDataLoader`:

    >>> data = forebay.torch.IterableDataset("s3://bucket/train", batch_size=256)  # doctest: +SKIP
    >>> loader = DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="forkserver")  # doctest: +SKIP

    The keywords are those of `forebay.torch.Loader` but for `transform` and `device`: use it, and no DataLoader, where you
    can; a batch's way out of a worker process costs a thousand times as much as its way out of a loader. With n workers,
    worker i reads steps i, i + n, i + 2n and so on, so that the DataLoader, which takes batches from its workers in turn,
    gives exactly the batches of a loader in their order.

    In the process itself each iteration is the next epoch, as with a loader. Worker processes get a copy of this: call
    `set_epoch` before each iteration over the DataLoader, or they refuse to repeat an epoch. With
    ``persistent_workers=True`` the copies go on by themselves. An iteration after the last of `epochs` is an error, with
    workers as without.

    Raises what `forebay.torch.Loader` raises, and `TypeError` for `transform` and `device`. Iterating also raises
    `InvalidError` in workers whose epoch was given to others before, where accelerate would share out the batches among
    the ranks once more, and where this process has another rank than when this was made.
    """

    def __init__(self, dataset: Dataset | DatasetName, **options: Unpack[LoaderOptions]) -> None:
        for name in _OF_LOADERS:
            if name in options:
                raise TypeError(
                    f"an IterableDataset takes no {name}=: use a forebay.torch.Loader without a DataLoader, or let the DataLoader "
                    "or the loop do it"
                )
        self._loader: Loader[Batch] | None = None
        loader: Loader[Batch] = Loader(dataset, **options)
        self._data = loader.data
        self._found, self._global_batch = loader._found, loader.global_batch
        self._options: dict[str, Any] = {**options, "rank": loader.rank, "world": loader.world}
        self._options.pop("columns", None)
        self._steps = len(loader)
        self._began = loader.state_dict()
        # Of this process's share of the iteration that is under way, or was loaded.
        self._batches = 0
        self._resumed = False
        # Whether this process, a worker, has begun to read that share, which may be empty.
        self._begun = False
        # Copies that were made for workers since the epoch was set, and which of them this is.
        self._copies = 0
        self._copy: int | None = None
        loader.close()

    def __len__(self) -> int:
        """Batches of a whole epoch of this rank."""
        return self._steps

    @property
    def epoch(self) -> int:
        """The epoch that comes next, or that is being read."""
        return self._began["epoch"] if self._loader is None else self._loader.epoch

    def set_epoch(self, epoch: int) -> None:
        """The next iteration reads this epoch, counted from 0. Changes nothing if it is to go on within this epoch anyway.

        Raises what `Loader.set_epoch` raises, and `InvalidError` where accelerate would share out the batches once more.
        """
        refuse_sharding(self._options["world"])
        self._copies = 0
        if self._loader is not None:
            self._loader.set_epoch(epoch)
        elif not self._resumed or epoch != self._began["epoch"]:
            self._place(epoch)

    def state_dict(self) -> IterableState:
        """Where this process's share of the iteration stands, after the batch that it gave last. In workers it counts
        batches of this worker alone."""
        if self._loader is not None:
            began, batches, workers = self._loader.state_dict(), 0, 1
        else:
            began, batches, workers = self._began, self._batches, _worker()[1]
        return {"began": began, "batches": batches, "workers": workers, "global_batch": self._global_batch}

    def load_state_dict(self, state: IterableState) -> None:
        """The next iteration goes on there: in as many workers and with as many rows in a step of all ranks, or without
        workers from a state without any, with any batch size.

        Raises what `Loader.load_state_dict` raises, and `InvalidError` for a state of other workers or, in the middle of an
        iteration, of other rows in a step.
        """
        try:
            began, batches, workers = state["began"], state["batches"], state["workers"]
        except (KeyError, TypeError) as e:
            raise CorruptError(
                f"this is no state of a forebay.torch.IterableDataset ({e!r}): pass what its state_dict() returned, as it was"
            ) from e
        self._check_workers(workers, batches)
        # A worker does not know how many rows the others have given.
        rows = state.get("global_batch", self._global_batch)
        if batches and rows != self._global_batch:
            raise InvalidError(
                f"the state is of workers in the middle of an iteration, with {rows} rows in a step of all ranks together; here "
                f"steps have {self._global_batch} rows: choose batch_size= (or global_batch=) so that batch_size x ranks is as it "
                "was, or use a forebay.torch.Loader, whose state takes any"
            )
        # Checks it. Where less than a step is left of an epoch, it stands at the next one.
        with self._one(began) as run:
            began = began if batches else run.state_dict()
        self._began, self._batches, self._resumed, self._begun = began, batches, True, False
        # In a worker: it is told where to go on.
        self._copies, self._copy = 0, None
        if self._loader is not None:
            self._loader.load_state_dict(began)

    def _check_workers(self, saved: int, batches: int) -> None:
        here = _worker()[1]
        if saved != here:
            raise InvalidError(f"the state is of {saved} workers, this DataLoader has {here}")
        if batches and torch.utils.data.get_worker_info() is None:
            raise InvalidError("the state is of a worker process, this is none: resume with num_workers=1")

    def __iter__(self) -> Iterator[Batch]:
        """One epoch: in this process all of this rank's batches, in worker i of n every n-th of them from the i-th on.

        Raises `InvalidError` as the class says, and what iterating over a `Loader` raises.
        """
        refuse_sharding(self._options["world"])
        self._found.check()
        worker, workers = _worker()
        if torch.utils.data.get_worker_info() is None:
            return self._here()
        if self._copy is not None and self._copy >= workers:
            raise InvalidError(
                f"epoch {self._began['epoch']} was given to workers before: call set_epoch() of this dataset before each "
                "iteration over the DataLoader"
            )
        # A later iteration in this process is the next epoch, also in a state of before its first batch.
        self._copy = None
        if self._begun:
            # The iteration before was left, or has ended.
            self._place(self._began["epoch"] + 1)
        self._begun, self._resumed = True, False
        return self._share(worker, workers)

    def _here(self) -> Iterator[Batch]:
        if self._loader is None:
            self._loader = self._one(self._began)
            self._resumed = False
        return iter(self._loader)

    def _share(self, worker: int, workers: int) -> Iterator[Batch]:
        """Every n-th step from where the iteration began, without those that were given already."""
        began, given = self._began, self._batches
        # Once a batch is asked for: a worker that goes on by itself dies of what `iter` raises, and does not tell why.
        check_epoch(began["epoch"], self._options.get("epochs"))
        with self._one(began) as plain:
            batch, left, done = plain.global_batch, plain.steps_left, began["samples_done"]
            samples = self._data._core.epoch_samples
            first = done // batch
            state = plain._state
            # Steps of n global batches, of which this worker is n x world ranks' one.
            groups = (samples - done) // (batch * workers)
            if given < groups:
                at = state(began["epoch"], done + given * workers * batch)
                for number, taken in enumerate(self._grouped(worker, workers, batch, began, at), start=given):
                    taken.step = first + number * workers + worker
                    self._batches = number + 1
                    yield taken
            step = groups * workers + worker
            if step < left and self._batches == groups:
                at = state(began["epoch"], done + step * batch)
                with self._one(_moved(began, at), epochs=began["epoch"] + 1) as loader:
                    taken = next(iter(loader))
                self._batches = groups + 1
                yield taken

    def _grouped(self, worker: int, workers: int, batch: int, began: State, at: bytes) -> Iterator[Batch]:
        rank, world = self._options["rank"], self._options["world"]
        shares = {
            "batch_size": None,
            "global_batch": batch * workers,
            "rank": worker * world + rank,
            "world": workers * world,
            "ending": "drop",
            "epochs": began["epoch"] + 1,
        }
        with self._one(_moved(began, at), **shares) as loader:
            yield from loader

    def _one(self, state: State, **options: Any) -> Loader[Batch]:
        loader: Loader[Batch] = Loader(self._data, **{**self._options, **options})
        loader.load_state_dict(state)
        return loader

    def _place(self, epoch: int) -> None:
        run = self._one(self._began)
        run.set_epoch(epoch)
        self._began, self._batches, self._resumed, self._begun = run.state_dict(), 0, False, False

    def __getstate__(self) -> dict[str, Any]:
        # Who reads, and as which rank, is not to be seen in a worker process, which this is about to be a copy in.
        refuse_sharding(self._options["world"])
        self._found.check()
        copy = {**self.__dict__, "_copy": self._copies, "_copies": 0, "_loader": None}
        if self._loader is not None:
            copy["_began"] = self._loader.state_dict()
        self._copies += 1
        return copy

    def __repr__(self) -> str:
        return f"<forebay.torch.IterableDataset of {self._data.uri}: epoch {self.epoch}, {len(self)} batches>"


def _moved(state: State, encoded: bytes) -> State:
    return {**state, "state": encoded.hex()}


def _worker() -> tuple[int, int]:
    """Which worker this process is, and of how many."""
    info = torch.utils.data.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
