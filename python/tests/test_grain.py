"""Grain's pipelines over a loader, and over rows by their number."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from conftest import Cluster, needs

import forebay

torch = needs("torch")
grain = needs("grain")

import forebay.grain
import forebay.torch

SETTINGS: dict[str, Any] = {"batch_size": 50, "seed": 3, "shuffle": 2}


def loader(cluster: Cluster) -> forebay.torch.Loader[forebay.torch.Batch]:
    return forebay.torch.Loader(cluster.dataset(columns=["id", "x"]), **SETTINGS)


def doubled(batch: Any) -> list[int]:
    return [2 * i for i in batch["id"].tolist()]


def test_a_loader_is_a_source(cluster: Cluster) -> None:
    """An epoch in each iteration, through Grain's own transformations; the state resumes in mid-epoch."""
    plain = loader(cluster)
    epochs = [[doubled(batch) for batch in plain] for _ in range(2)]
    data = forebay.grain.IterDataset(loader(cluster)).map(doubled).filter(lambda ids: len(ids) == 50)
    assert [list(data), list(data)] == epochs
    for taken in [1, 5, 11, 12]:
        steps = iter(forebay.grain.IterDataset(loader(cluster)).map(doubled))
        assert [next(steps) for _ in range(taken)] == epochs[0][:taken]
        resumed = iter(forebay.grain.IterDataset(loader(cluster)).map(doubled))
        resumed.set_state(steps.get_state())
        # After an epoch's last batch comes the next epoch.
        assert list(resumed) == (epochs[0][taken:] or epochs[1])


def test_threads_that_read_ahead_keep_the_state_of_what_they_gave(cluster: Cluster) -> None:
    plain = [batch["id"].tolist() for batch in loader(cluster)]

    def ahead() -> Any:
        data = forebay.grain.IterDataset(loader(cluster)).map(lambda batch: batch["id"].tolist())
        return iter(grain.experimental.ThreadPrefetchIterDataset(data, prefetch_buffer_size=3))

    steps = ahead()
    assert [next(steps) for _ in range(4)] == plain[:4]
    resumed = ahead()
    resumed.set_state(steps.get_state())
    assert list(resumed) == plain[4:]


def test_rows_by_number_are_a_source(cluster: Cluster) -> None:
    rows: Any = forebay.torch.MapDataset(cluster.dataset(columns=["id", "x"]))
    data = grain.MapDataset.source(rows)
    assert len(data) == 600 and float(data[41]["x"]) == 41 / 4
    shuffled = data.shuffle(seed=1)[:40].map(lambda row: int(row["id"]))
    ids = [shuffled[i] for i in range(40)]
    assert len(set(ids)) == 40 and ids != sorted(ids) and max(ids) < 600
    assert [int(data[i]["id"]) for i in range(3)] == [0, 1, 2]


def test_worker_processes_are_refused(cluster: Cluster) -> None:
    with pytest.raises(TypeError, match="a loader cannot be pickled"):
        pickle.dumps(forebay.grain.IterDataset(loader(cluster)))
