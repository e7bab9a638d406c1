"""Batches that arrive on a device. Where there is no GPU, the test of CUDA's own way is skipped."""

from __future__ import annotations

from collections import UserDict, defaultdict
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from conftest import Cluster, needs

import forebay

torch = needs("torch")

import forebay.torch
from forebay._device import Device
from forebay.torch import Image

SETTINGS: dict[str, Any] = {"global_batch": 70, "seed": 3, "shuffle": 2, "ending": "pad"}
COLUMNS = ["id", "x", "image", "name", "tags", "place"]


class Pair(NamedTuple):
    first: Any
    second: Any


def test_the_cpu_is_a_device(cluster: Cluster) -> None:
    """Batches are made ahead, in their order, and stay what and where they are."""
    plain = forebay.torch.Loader(cluster.dataset(columns=COLUMNS), ragged="list", **SETTINGS)
    ahead = forebay.torch.Loader(cluster.dataset(columns=COLUMNS), ragged="list", device="cpu", **SETTINGS)
    for _ in range(2):
        for one, other in zip(plain, ahead, strict=True):
            assert torch.equal(one["id"], other["id"]) and torch.equal(one["image"], other["image"])
            assert one["name"] == other["name"] and list(map(len, one["tags"])) == list(map(len, other["tags"]))
            assert torch.equal(one.sample_ids, other.sample_ids) and (one.mask is None) == (other.mask is None)
            assert plain.state_dict() == ahead.state_dict()
    assert plain.digest == ahead.digest


def test_every_tensor_arrives(cluster: Cluster) -> None:
    """By the plain way that devices other than CUDA's take; torch's meta device has no values, but shapes and types."""
    dataset = cluster.dataset(columns=COLUMNS)
    here = forebay.torch.Loader(dataset, ragged="raw", **SETTINGS)
    there = forebay.torch.Loader(dataset, ragged="raw", device="meta", **SETTINGS)
    for one, other in zip(here, there, strict=True):
        for name in ["id", "x", "image"]:
            assert other[name].device.type == "meta" and other[name].shape == one[name].shape
            assert other[name].dtype == one[name].dtype
        assert type(other) is forebay.torch.Batch and other.step == one.step and other["name"] == one["name"]
        assert {tensor.device.type for tensor in [*other["tags"], *other["place"].values()]} == {"meta"}
        # Where programs look at them.
        assert torch.equal(other.sample_ids, one.sample_ids)
        assert (one.mask is None and other.mask is None) or (other.mask is not None and other.mask.device.type == "meta")
    assert one.mask is not None


def test_what_a_transform_returns_arrives(cluster: Cluster) -> None:
    def transform(batch: forebay.torch.Batch) -> Any:
        assert batch["id"].device.type == "cpu"
        return Pair(batch["id"], [(batch["x"] * 2, "text"), {"image": batch["image"]}, None])

    loader: Any = forebay.torch.Loader(cluster.dataset(columns=COLUMNS[:3]), transform=transform, device="meta", **SETTINGS)
    for made in loader:
        assert type(made) is Pair and made.first.device.type == "meta"
        (doubled, text), fields, nothing = made.second
        assert {doubled.device.type, fields["image"].device.type} == {"meta"} and (text, nothing) == ("text", None)


def test_what_a_batch_says_of_itself_comes_along(cluster: Cluster) -> None:
    """By whatever moves it: Lightning, accelerate, or the loop."""
    from accelerate.utils import send_to_device
    from lightning.fabric.utilities import move_data_to_device

    meta = torch.device("meta")
    for batch in forebay.torch.Loader(cluster.dataset(columns=COLUMNS), ragged="raw", **SETTINGS):
        ways = [move_data_to_device(batch, meta), send_to_device(batch, meta), batch.to("meta", non_blocking=True)]
        for moved in ways:
            assert type(moved) is forebay.torch.Batch and (moved.epoch, moved.step) == (batch.epoch, batch.step)
            assert torch.equal(moved.sample_ids, batch.sample_ids) and moved["name"] == batch["name"]
            tensors = [moved["id"], *moved["tags"], *moved["place"].values()]
            assert {tensor.device.type for tensor in tensors} == {"meta"}
            assert (moved.mask is None) == (batch.mask is None)
            assert moved.mask is None or moved.mask.device.type == "meta"
        assert batch["id"].device.type == "cpu"
    assert batch.mask is not None and batch.mask.device.type == "cpu"


def test_mappings_of_any_type_arrive() -> None:
    """Those whose items can be set keep their type and attributes, and what was sent stays as it was."""
    from transformers import BatchEncoding

    tensor = torch.zeros(2)
    noted: Any = UserDict(x=tensor, name="a")
    noted.source = "here"
    lists, encoding = defaultdict(list, x=[tensor]), BatchEncoding({"x": tensor}, n_sequences=1)
    sent = [noted, lists, encoding, MappingProxyType({"x": tensor})]
    made = Device("meta").send(sent).value
    assert [type(mapping) for mapping in made] == [UserDict, defaultdict, BatchEncoding, dict]
    assert {mapping["x"].device.type for mapping in [made[0], made[2], made[3]]} == {"meta"}
    assert (made[0]["name"], made[0].source, made[2].n_sequences) == ("a", "here", 1)
    assert made[1]["x"][0].device.type == "meta" and made[1]["none"] == []
    assert all(mapping["x"] is tensor for mapping in [noted, encoding]) and lists == {"x": [tensor]}


def test_a_forked_process_waits_for_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("cannot re-initialize CUDA in forked subprocess")

    device: Any = Device("meta")
    device._copies = SimpleNamespace(synchronize=refuse)
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: device._process + 1)
        device.close()
    with pytest.raises(RuntimeError, match="cannot re-initialize"):
        device.close()
    device._copies = None


def test_packed_sequences_arrive() -> None:
    rows = [torch.zeros(2), torch.zeros(3)]
    packed = torch.nn.utils.rnn.pack_sequence(rows, enforce_sorted=False)
    made = Device("meta").send({"x": packed}).value["x"]
    assert type(made) is type(packed) and made.batch_sizes.tolist() == [2, 2, 1]
    assert {tensor.device.type for tensor in [made.data, made.sorted_indices, made.unsorted_indices]} == {"meta"}


def test_images_arrive(cluster: Cluster) -> None:
    dataset = cluster.dataset("photos", columns=["photo"])
    for batch in forebay.torch.Loader(dataset, images={"photo": Image(5)}, device="meta", batch_size=12):
        assert batch["photo"].shape == (12, 3, 5, 5) and batch["photo"].device.type == "meta"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_it_is_a_clear_error(cluster: Cluster) -> None:
    for device in ["cuda", "cuda:1", torch.device("cuda", 0)]:
        with pytest.raises(forebay.InvalidError, match=r"device='cuda.*sees no CUDA device here: leave device= out"):
            forebay.torch.Loader(cluster.dataset(), batch_size=10, device=device)
    with pytest.raises(forebay.InvalidError, match="device='tape'"):
        forebay.torch.Loader(cluster.dataset(), batch_size=10, device="tape")


@pytest.mark.cuda
def test_cuda_gets_the_values(cluster: Cluster) -> None:
    """More batches than are ahead, each changed in place and dropped while others travel."""
    dataset = cluster.dataset(columns=["id", "image"])
    here = forebay.torch.Loader(dataset, **SETTINGS)
    there = forebay.torch.Loader(dataset, device="cuda", **SETTINGS)
    kept: list[Any] = []
    for _ in range(5):
        for one, other in zip(here, there, strict=True):
            assert other["image"].device.type == "cuda" and torch.equal(other["image"].cpu(), one["image"])
            assert torch.equal(other["id"].cpu(), one["id"])
            if one.step % 2:
                kept = [*kept[-3:], (one["image"], other["image"])]
            else:
                other["image"].fill_(1)
    assert all(torch.equal(one, other.cpu()) for one, other in kept)
