"""TorchTitan's interface for data loaders, as its trainer uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Cluster, needs

import forebay

torch = needs("torch")
needs("torchtitan")

from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torchtitan.components.dataloader import BaseDataLoader

import forebay.torch
import forebay.torchtitan

ROWS, LENGTH, BATCH = 96, 16, 4


@pytest.fixture
def config(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("FOREBAY_ENDPOINT", cluster.endpoint)
    return forebay.torchtitan.DataLoader.Config(dataset=cluster.uri("tokens"), seed=5, shuffle=2)


def built(config: Any, rank: int = 0, world: int = 1, **options: Any) -> Any:
    """As TorchTitan's trainer builds it."""
    runtime = {"seq_len": LENGTH, "local_batch_size": BATCH, "tokenizer": None, "snapshot_every_n_steps": None}
    return config.build(dp_world_size=world, dp_rank=rank, **{**runtime, **options})


def first(loader: Any, steps: int) -> list[Any]:
    return [[labels.tolist(), inputs["input"].tolist()] for _, (inputs, labels) in zip(range(steps), loader, strict=False)]


def test_batches_are_tokens_and_those_that_follow_them(cluster: Cluster, config: Any) -> None:
    loader = built(config)
    assert isinstance(loader, BaseDataLoader)
    plain = forebay.torch.Loader(config.dataset, batch_size=BATCH, seed=5, shuffle=2)
    steps, seen = iter(loader), 0
    # It goes on in the next epoch, without an end.
    for _ in range(2):
        for batch in plain:
            inputs, labels = next(steps)
            assert torch.equal(inputs["input"], batch["tokens"][:, :-1].long())
            assert torch.equal(labels, batch["tokens"][:, 1:].long()) and labels.dtype == torch.int64
            assert inputs["positions"].tolist() == [list(range(LENGTH))] * BATCH
            seen += len(labels)
    assert seen == 2 * ROWS
    config.infinite = False
    assert len(first(built(config), 1000)) == ROWS // BATCH


def test_torch_s_default_device_does_not_matter(config: Any) -> None:
    """TorchTitan builds models within one."""
    with torch.device("meta"):
        inputs, labels = next(iter(built(config)))
    assert {tensor.device.type for tensor in [*inputs.values(), labels]} == {"cpu"}


def test_checkpoints_resume_on_another_number_of_ranks(config: Any, tmp_path: Path) -> None:
    """By torch's distributed checkpoints, which TorchTitan writes; its own loaders refuse another number of ranks."""
    whole = [first(built(config, local_batch_size=2 * BATCH), 24)][0]
    taken = 5
    ranks = [built(config, rank, 2) for rank in range(2)]
    seen = [first(rank, taken) for rank in ranks]
    assert [left[0] + right[0] for left, right in zip(*seen, strict=True)] == [step[0] for step in whole[:taken]]
    assert ranks[0].state_dict() == ranks[1].state_dict()
    state_dict_saver.save({"dataloader": ranks[0]}, checkpoint_id=tmp_path, no_dist=True)
    resumed = built(config, local_batch_size=2 * BATCH)
    resumed.load_state_dict({})
    state_dict_loader.load({"dataloader": resumed}, checkpoint_id=tmp_path, no_dist=True)
    assert first(resumed, 24 - taken) == whole[taken:]


def test_rows_of_another_length_are_refused(config: Any) -> None:
    with pytest.raises(forebay.InvalidError, match="'tokens' .* a sequence of 9 takes lists of 10 integers"):
        first(built(config, seq_len=9), 1)
