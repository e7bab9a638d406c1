"""The plan of an epoch: which rows each of its steps holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from forebay import _forebay
from forebay._html import table

# Steps and rows that are shown.
_SHOWN_STEPS = 5
_SHOWN_ROWS = 8


class Plan(Sequence[list[int]]):
    """For each step of an epoch, or of the rest of one, the rows that one rank's batch holds: their numbers in the
    dataset, counted from 0 in file order, in the order of the batch. Nothing is read for it. Made by `Dataset.plan`,
    `Loader.plan` and `Sampler.plan`.

    Raises `IndexError` for a step that the plan does not have; negative steps count from the end.
    """

    def __init__(self, plan: _forebay.Plan, what: str) -> None:
        self._plan = plan
        self._what = what

    @property
    def epoch(self) -> int:
        """The epoch, from 0."""
        return self._plan.epoch

    def __len__(self) -> int:
        """Steps, the same on every rank."""
        return self._plan.steps

    @overload
    def __getitem__(self, step: int) -> list[int]: ...
    @overload
    def __getitem__(self, step: slice) -> list[list[int]]: ...
    def __getitem__(self, step: int | slice) -> list[int] | list[list[int]]:
        """The rows of a step, or of each step of a slice; padding repeats rows that came before.

        Raises `IndexError` for a step that the plan does not have.
        """
        if isinstance(step, slice):
            return [self[number] for number in range(*step.indices(len(self)))]
        return self._plan.step(self._number(step))[0]

    def mask(self, step: int) -> list[bool] | None:
        """Which rows of a step are not padding, one value for each row; None when none is padding.

        Raises `IndexError` for a step that the plan does not have.
        """
        return self._plan.step(self._number(step))[1]

    def _number(self, step: int) -> int:
        if not -len(self) <= step < len(self):
            raise IndexError(f"the plan has {len(self)} steps: there is no step {step}")
        return step % len(self)

    def __repr__(self) -> str:
        return f"<forebay.Plan of epoch {self.epoch}, {len(self)} steps: {self._what}>"

    def _repr_html_(self) -> str:
        rows = [(str(step), _some(self[step])) for step in range(min(len(self), _SHOWN_STEPS))]
        if len(self) > _SHOWN_STEPS:
            rows.append(("…", f"{len(self) - _SHOWN_STEPS} more steps"))
        return table(f"forebay.Plan of epoch {self.epoch}: {self._what}", rows, ("step", "rows of the dataset"))


def _some(rows: list[int]) -> str:
    more = f", … ({len(rows)})" if len(rows) > _SHOWN_ROWS else ""
    return ", ".join(map(str, rows[:_SHOWN_ROWS])) + more
