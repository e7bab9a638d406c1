"""A training run over a dataset: its epochs and steps, and where it stands."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Literal, TypedDict

from forebay._dataset import Dataset, DatasetName
from forebay._dataset import opened as opened_dataset
from forebay._errors import ChangedError, CorruptError, InvalidError
from forebay._forebay import Settings, __version__
from forebay._html import table
from forebay._numbers import whole
from forebay._plan import Plan
from forebay._ranks import rank_and_world

_log = logging.getLogger("forebay")

_FORM = 1
"""The form of the states that this version writes and reads."""


_INSTEAD = {
    "batch_sampler": "pass it to a DataLoader over a forebay.torch.MapDataset, or leave it out and pass shuffle= and seed=",
    "collate_fn": "pass transform=, a function of a whole batch",
    "drop_last": "pass ending='drop', or 'exact' to keep the last step",
    "generator": "pass seed=",
    "num_workers": "leave it out: rows arrive decoded, and transform= runs in threads",
    "pin_memory": "pass device='cuda' to forebay.torch.Loader",
    "sampler": "pass it to a DataLoader over a forebay.torch.MapDataset, or leave it out and pass shuffle= and seed=",
}
"""What to do about keywords of torch's DataLoader."""


class State(TypedDict):
    """Where a run stands: plain texts and numbers, the same on every rank. `state` holds all of it."""

    forebay: int
    dataset: str
    epoch: int
    samples_done: int
    state: str


class RunOptions(TypedDict, total=False):
    """The keywords that all loaders and samplers have in common.

    Exactly one of `batch_size` (rows of a rank) and `global_batch` (rows of all ranks together) is given. `shuffle` (4)
    mixes that many segments at a time; "full" mixes all rows, None keeps file order. `ending` says what to do with an
    epoch's last, incomplete step: "drop" it (the default), "pad" it with rows that `mask` marks, or keep it "exact",
    shorter. `rank` and `world` come from torch.distributed or the launcher's environment, unless given. `epochs` ends
    the run; unset, it goes on as long as it is iterated over. `columns` are those to read, in this order; unset, those of
    the dataset. `prefetch_bytes` (256 MiB) bounds the memory of batches that are ready or being filled. `patience_s` (60)
    is how long rows may fail to come before that is an error.
    """

    batch_size: int | None
    global_batch: int | None
    seed: int
    shuffle: int | Literal["full"] | None
    ending: Literal["drop", "pad", "exact"]
    rank: int | None
    world: int | None
    epochs: int | None
    columns: Sequence[str] | None
    prefetch_bytes: int
    patience_s: float


class Run:
    """What loaders and samplers have in common: a place in the order of a dataset's epochs."""

    def __init__(
        self,
        dataset: Dataset | DatasetName,
        *,
        batch_size: int | None = None,
        global_batch: int | None = None,
        seed: int = 0,
        shuffle: int | Literal["full"] | None = 4,
        ending: Literal["drop", "pad", "exact"] = "drop",
        rank: int | None = None,
        world: int | None = None,
        epochs: int | None = None,
        columns: Sequence[str] | None = None,
        prefetch_bytes: int = 256 << 20,
        patience_s: float = 60.0,
        **unknown: object,
    ) -> None:
        """Plans a run; nothing is read yet. The keywords are described in `RunOptions`.

        Raises `InvalidError` for keywords that make no sense or contradict each other, `TypeError` for unknown ones.
        """
        for name in unknown:
            advice = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise TypeError(f"{type(self).__name__}() takes no {name}={advice}")
        opened = opened_dataset(dataset, columns)
        self._found = rank_and_world(rank, world)
        said_by = self._found.said_by
        if (batch_size is None) == (global_batch is None):
            raise InvalidError("pass one of batch_size= (rows of each rank) and global_batch= (rows of all ranks together)")
        self.world = whole("world", self._found.world, least=1, bits=32)
        self.rank = whole("rank", self._found.rank, bits=32)
        self.data = opened
        if global_batch is None:
            global_batch = whole("batch_size", batch_size or 0, least=1) * self.world
        self.global_batch = whole("global_batch", global_batch, least=1)
        self.ending = ending
        self._settings = Settings(
            seed=whole("seed", seed),
            shuffle=_shuffle(shuffle),
            ending=ending,
            global_batch=self.global_batch,
            rank=self.rank,
            world=self.world,
            epochs=None if epochs is None else whole("epochs", epochs),
            prefetch_bytes=whole("prefetch_bytes", prefetch_bytes),
            patience_s=patience_s,
        )
        self._epochs = epochs
        # Counts iterations: only the last one may go on.
        self._turn = 0
        # Held while the run moves, or all of its place is looked at; never while something is waited for.
        self._moving = threading.RLock()
        self._place(self._settings)
        _log.info("rank %d of %d (%s)", self.rank, self.world, said_by)

    def _place(self, settings: Settings) -> None:
        """Stands where `settings` begin: at the position of the next batch."""
        self._epoch, self._samples_done, self._steps_left, self._steps = settings.start(self.data._core)
        self._settings = settings
        # Whether batches of the epoch were handed out by an iteration that has not ended it.
        self._begun = False

    def _stop(self) -> None:
        """Ends the iteration that is under way, if there is one."""
        self._turn += 1

    def _begin(self) -> int:
        """Begins an iteration: of the rest of an epoch that was resumed, or of the next one."""
        self._found.check()
        if self._begun:
            # The epoch was left early.
            self._stop()
            self._place(self._settings.at_epoch(self._epoch + 1))
        check_epoch(self._epoch, self._epochs)
        self._turn += 1
        return self._turn

    def _step(self, samples_done: int) -> bool:
        """A step was handed out; says whether it was the epoch's last."""
        self._samples_done, self._steps_left = samples_done, self._steps_left - 1
        self._begun = self._steps_left > 0
        if self._begun:
            return False
        # After an epoch's last batch the run stands at the beginning of the next epoch.
        self._epoch, self._samples_done, self._steps_left = self._epoch + 1, 0, self._steps
        return True

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on every rank; of one that was resumed, `steps_left` are left."""
        return self._steps

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or that comes next; counted from 0."""
        return self._epoch

    @property
    def steps_left(self) -> int:
        """Steps of that epoch that were not handed out yet."""
        return self._steps_left

    @property
    def seed(self) -> int:
        """The run's seed: that of the state if one was loaded."""
        return self._settings.seed

    @property
    def shuffle(self) -> str:
        """How rows are shuffled: none, full or window(N) for N segments; that of the state if one was loaded."""
        return self._settings.shuffle

    def plan(self, epoch: int | None = None) -> Plan:
        """Which rows this rank's steps of an epoch hold; unset, the steps that come next. Nothing is read for it.

        Raises `InvalidError` for an epoch below 0.
        """
        if epoch is None:
            with self._moving:
                settings = self._at(self._epoch, self._samples_done)
        else:
            settings = self._settings.at_epoch(whole("epoch", epoch))
        ranks = f"rank {self.rank} of {self.world}, seed {self.seed}, shuffle {self.shuffle}, ending {self.ending}"
        return Plan(settings.plan(self.data._core), f"{self.data.uri}, {ranks}")

    def set_epoch(self, epoch: int) -> None:
        """The next iteration reads this epoch, counted from 0, from its beginning. Changes nothing if it would read this
        epoch anyway, so an epoch that was resumed in its middle goes on there. An iteration that is under way ends with a
        `ClosedError`.

        Raises `InvalidError` for an epoch below 0, `TypeError` for one that is no whole number. One beyond the run's
        `epochs` is refused by the next iteration.
        """
        epoch = whole("epoch", epoch)
        with self._moving:
            if epoch == self._epoch and not self._begun:
                return
            self._stop()
            self._place(self._settings.at_epoch(epoch))

    def state_dict(self) -> State:
        """Where the run stands after the batch that was handed out last, whatever was read ahead."""
        with self._moving:
            epoch, samples_done = self._epoch, self._samples_done
            state = self._state(epoch, samples_done)
        return {
            "forebay": _FORM,
            "dataset": self.data.version,
            "epoch": epoch,
            "samples_done": samples_done,
            "state": state.hex(),
        }

    def load_state_dict(self, state: State) -> None:
        """The next iteration goes on there, on any number of ranks and with any batch size. Seed and shuffle become
        the state's. An iteration that is under way ends with a `ClosedError`.

        Raises `ChangedError` for a state of another dataset or version, `CorruptError` for a damaged one, `InvalidError` for
        one of a form that this version of Forebay does not know.
        """
        try:
            form = state["forebay"]
            if form != _FORM:
                raise InvalidError(
                    f"the state has form {form!r}, forebay {__version__} reads form {_FORM}: resume with the version of forebay "
                    "that saved it or a later one (pip install --upgrade forebay)"
                )
            version, encoded = state["dataset"], _bytes(state["state"])
        except (KeyError, TypeError) as e:
            raise CorruptError(
                f"this is no state of a Forebay loader ({e!r}): pass what its state_dict() returned, as it was"
            ) from e
        if version != self.data.version:
            raise ChangedError(
                f"the state is of dataset version {version}, {self.data.uri} has {self.data.version}: "
                "resume with the dataset that it was saved from"
            )
        with self._moving:
            settings = self._settings.at_epoch(0).resumed(encoded)
            self._stop()
            self._place(settings)

    def _state(self, epoch: int, samples_done: int) -> bytes:
        return self._settings.state(self.data._core, epoch, samples_done)

    def _at(self, epoch: int, samples_done: int) -> Settings:
        return self._settings.at_epoch(0).resumed(self._state(epoch, samples_done))

    def _whereabouts(self) -> str:
        return f"epoch {self._epoch}, {self._steps_left} of {self._steps} steps of {self.global_batch} rows left"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a loader cannot be pickled: pickle its dataset and state_dict(), and make a loader of them")

    def __repr__(self) -> str:
        return (
            f"<{type(self).__module__}.{type(self).__name__} of {self.data.uri}: {self._whereabouts()}, "
            f"rank {self.rank} of {self.world}, seed {self.seed}, shuffle {self.shuffle}, ending {self.ending}>"
        )

    def _repr_html_(self) -> str:
        rows = [
            ("dataset", self.data.uri),
            ("version", self.data.version),
            ("columns", ", ".join(self.data.columns)),
            ("stands at", self._whereabouts()),
            ("rank", f"{self.rank} of {self.world}"),
            ("seed", self.seed),
            ("shuffle", self.shuffle),
            ("ending", self.ending),
        ]
        return table(f"{type(self).__module__}.{type(self).__name__}", rows)


def check_epoch(epoch: int, epochs: int | None) -> None:
    """`InvalidError` if the run ends before this epoch."""
    if epochs is not None and epoch >= epochs:
        raise InvalidError(f"all {epochs} epochs of this run are over: pass a larger epochs=, or set_epoch()")


def _shuffle(shuffle: int | str | None) -> str:
    if shuffle is None:
        return "none"
    if isinstance(shuffle, bool):
        raise InvalidError(
            f"shuffle={shuffle}: pass how many segments are mixed, as in shuffle=16, 'full', or None for the rows as they lie"
        )
    return shuffle if isinstance(shuffle, str) else f"window({shuffle})"


def _bytes(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError as e:
        raise CorruptError(f"the state is damaged ({e}): resume from another checkpoint") from e
