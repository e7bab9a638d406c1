"""Rows by number, for the samplers of `torch.utils.data`, and a sampler in Forebay's order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import torch
import torch.utils.data

from forebay._dataset import Dataset, DatasetName, opened
from forebay._errors import ClosedError, InvalidError
from forebay._run import Run, RunOptions
from forebay._sharding import refuse_sharding
from forebay._tensors import Place, Ragged, TensorOptions, Tensors
from forebay._torch_loader import Batch


class Rows(Sequence[dict[str, Any]]):
    """Rows that were read together, and lie together until one is asked for: `MapDataset.collate` takes them whole."""

    def __init__(self, columns: Batch, count: int) -> None:
        self.columns = columns
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(self._count))]
        if not -self._count <= row < self._count:
            raise IndexError(f"there are {self._count} rows: there is no row {row}")
        return _row(self.columns, row)


class MapDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """Any row of a dataset by its number, as dicts of tensors: for `DistributedSampler` and other samplers.

    >>> data = forebay.torch.MapDataset("s3://bucket/train", columns=["image", "label"])  # doctest: +SKIP
    >>> loader = DataLoader(data, batch_size=64, shuffle=True, collate_fn=data.collate)  # doctest: +SKIP

    `nulls`, `ragged`, `binaries` and `images` are those of `forebay.torch.Loader`; images are not varied. The rows of a batch
    are read by one request. It can be pickled; worker processes need the start method "forkserver" or "spawn". A random row
    costs much more than the next row of a loader: prefer that, or `forebay.torch.Sampler`, whose order has the rows of few
    segments at a time.

    Making one raises what `forebay.torch.Loader` raises for its dataset and its columns, and `InvalidError` for images that
    are varied. Reading rows raises what `Dataset.take` raises, and what such a loader raises for columns and images.
    """

    def __init__(
        self,
        dataset: Dataset | DatasetName,
        *,
        columns: Sequence[str] | None = None,
        **options: Unpack[TensorOptions],
    ) -> None:
        self.data = opened(dataset, columns)
        varied = [name for name, image in (options.get("images") or {}).items() if image.augment is not None]
        if varied:
            raise InvalidError(
                f"images= varies {varied[0]!r}, but a row by its number has no epoch: leave augment= out, or use "
                "forebay.torch.Loader"
            )
        self._options = options
        self._tensors = Tensors(self.data.schema, **options)

    def __len__(self) -> int:
        """Rows."""
        return len(self.data)

    def __getitem__(self, row: int) -> dict[str, Any]:
        """A row: numbers as tensors without dimensions, lists of numbers `[n]`, strings and binaries as they are.

        Raises `IndexError` for a row that does not exist, otherwise as the class says.
        """
        sample: dict[str, Any] = self._read([row])[0]
        return sample

    def __getitems__(self, rows: Sequence[int]) -> Sequence[dict[str, Any]]:
        """These rows, in this order, read together. Where a class made of this one has a `__getitem__` of its own, each row is
        what that returns, and read alone. Raises what `__getitem__` raises."""
        if type(self).__getitem__ is not MapDataset.__getitem__:
            return [self[row] for row in rows]
        return self._read(rows)

    def _read(self, rows: Sequence[int]) -> Rows:
        numbers = [self.data._row(row) for row in rows]
        parts, done = [], 0
        for part in self.data._core.take(numbers):
            place = Place(numbers[done : done + len(part)])
            parts.append(dict(self._tensors.columns(part, place)))
            done += len(part)
        batch = Batch(_joined(parts))
        batch.sample_ids = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        batch.mask = None
        return Rows(batch, len(numbers))

    @staticmethod
    def collate(rows: Sequence[dict[str, Any]]) -> Any:
        """For `DataLoader(collate_fn=...)`: a `Batch` of rows that were read together, without taking them apart. It has
        `sample_ids`, and no epoch, step and digest."""
        return rows.columns if isinstance(rows, Rows) else torch.utils.data.default_collate(list(rows))

    def __getstate__(self) -> dict[str, Any]:
        # The threads that decode stay here.
        return {name: value for name, value in self.__dict__.items() if name != "_tensors"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._tensors = Tensors(self.data.schema, **self._options)

    def __repr__(self) -> str:
        return f"<forebay.torch.MapDataset of {self.data.uri}: {len(self)} rows of {', '.join(self.data.columns)}>"


def _row(column: Any, row: int) -> Any:
    if isinstance(column, dict):
        return {name: _row(field, row) for name, field in column.items()}
    return column.row(row) if isinstance(column, Ragged) else column[row]


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The columns of parts one after the other."""
    if len(parts) == 1:
        return parts[0]
    return {name: _joined_column([part[name] for part in parts]) for name in (parts[0] if parts else ())}


def _joined_column(parts: list[Any]) -> Any:
    if isinstance(parts[0], dict):
        return _joined(parts)
    if isinstance(parts[0], list):
        return [value for part in parts for value in part]
    if isinstance(parts[0], Ragged):
        lengths = [0, *(len(part.values) for part in parts)]
        ends = torch.tensor(lengths, dtype=torch.int64, device="cpu").cumsum(0)
        starts = [part.offsets[:-1] + end for part, end in zip(parts, ends[:-1], strict=True)]
        return Ragged(torch.cat([part.values for part in parts]), torch.cat([*starts, ends[-1:]]))
    width = max(part.shape[1] for part in parts) if parts[0].dim() > 1 else 0
    # Only lists that were filled up differ in their width.
    parts = [_widened(part, width) for part in parts]
    return torch.cat(parts)


def _widened(part: torch.Tensor, width: int) -> torch.Tensor:
    if part.dim() < 2 or part.shape[1] == width:
        return part
    return torch.nn.functional.pad(part, [0, 0] * (part.dim() - 2) + [0, width - part.shape[1]])


class Sampler(Run, torch.utils.data.Sampler[list[int]]):
    """Forebay's order for `DataLoader(batch_sampler=...)`: for each of this rank's steps, the numbers of its rows.

    >>> data = forebay.torch.MapDataset("s3://bucket/train")  # doctest: +SKIP
    >>> sampler = forebay.torch.Sampler(data.data, batch_size=64, seed=1)  # doctest: +SKIP
    >>> loader = StatefulDataLoader(data, batch_sampler=sampler, collate_fn=data.collate)  # doctest: +SKIP

    The keywords are those of `forebay.RunOptions`; epochs and state are as with `forebay.torch.Loader`, and the state is that
    of the step whose numbers were handed out last. A DataLoader with workers asks for steps ahead: there, keep the state of
    torchdata's `StatefulDataLoader`, which has this one's within it. Padding repeats rows, and nothing marks it.

    Making one raises what making a `forebay.Loader` raises.
    """

    def __init__(self, dataset: Dataset | DatasetName, **options: Unpack[RunOptions]) -> None:
        super().__init__(dataset, **options)

    def __iter__(self) -> Iterator[list[int]]:
        """One epoch: that of `set_epoch`, the rest of one that was resumed, or the one after the last.

        Raises `InvalidError` if the run's `epochs` are over, if this process has another rank than when the sampler was made,
        and where accelerate would share out the steps once more. Iterating raises `ClosedError` once another iteration began
        or the sampler was placed elsewhere.
        """
        refuse_sharding(self.world)
        with self._moving:
            return self._steps_from(self._begin())

    def _steps_from(self, turn: int) -> Iterator[list[int]]:
        plan = self._at(self._epoch, self._samples_done).plan(self.data._core)
        for number in range(plan.steps):
            if turn != self._turn:
                raise ClosedError("another iteration over this sampler began, or it was placed elsewhere: iterate again")
            rows, _, samples_done = plan.step(number)
            with self._moving:
                self._step(samples_done)
            yield rows
