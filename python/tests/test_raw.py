"""Strings, binaries and lists as values and offsets, in the loader's own memory."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from conftest import Cluster, needs

import forebay

torch = needs("torch")

import forebay.torch
from forebay.torch import Ragged

SETTINGS: dict[str, Any] = {"global_batch": 70, "seed": 3, "ending": "pad", "binaries": "raw", "ragged": "raw"}
COLUMNS = ["id", "name", "tags"]


def texts(ragged: Ragged) -> list[str]:
    return [bytes(ragged.row(i).tolist()).decode() for i in range(len(ragged.offsets) - 1)]


@pytest.mark.parametrize("way", ["dataset", "direct"])
@pytest.mark.parametrize("shuffle", [None, 2, "full"])
def test_values_share_memory_that_is_the_batch_s_own(cluster: Cluster, way: str, shuffle: Any) -> None:
    """Writing to them changes nothing that is read later, padding repeats rows and all."""
    loader = forebay.torch.Loader(getattr(cluster, way)(columns=COLUMNS), shuffle=shuffle, **SETTINGS)
    for _ in range(2):
        loader.set_epoch(0)
        seen = []
        for batch in loader:
            ids = batch["id"].tolist()
            assert texts(batch["name"]) == [f"row {i}" for i in ids]
            assert [batch["tags"].row(row).tolist() for row in range(len(ids))] == [list(range(i % 4)) for i in ids]
            assert batch["name"].values.dtype == torch.uint8 and batch["name"].offsets.dtype == torch.int64
            nested = torch.nested.nested_tensor_from_jagged(batch["tags"].values, batch["tags"].offsets)
            assert nested[3].tolist() == list(range(ids[3] % 4))
            seen += ids
            batch["name"].values.fill_(0)
            batch["tags"].values.fill_(0)
        assert len(seen) == 630 and set(seen) == set(range(600))


def test_nothing_is_copied(cluster: Cluster) -> None:
    batch = next(iter(forebay.Loader(cluster.dataset("wide"), batch_size=20)))
    once, twice = (torch.utils.dlpack.from_dlpack(batch["blob"].items()[0]) for _ in range(2))
    assert once.data_ptr() == twice.data_ptr() and len(once) == 2_000_000
    arrow = pa.array(batch["blob"])
    assert arrow.buffers()[2].address == once.data_ptr()


@pytest.mark.parametrize("ragged", ["list", "pad", "raw"])
def test_torch_s_defaults_change_nothing(cluster: Cluster, ragged: Any) -> None:
    """Offsets, and what stands in place of nulls, are made here: on the CPU, of the columns' types."""
    options: Any = {"nulls": {"gaps.flag": True, "gaps.name": "", "gaps.tags": [3, 4]}, "ragged": ragged, "binaries": "raw"}

    def read() -> list[Any]:
        rows = forebay.torch.MapDataset(cluster.dataset(columns=["gaps"]), **options)
        together = rows.collate(rows.__getitems__([599, 3, 0, 250]))
        loader = forebay.torch.Loader(cluster.dataset(columns=["gaps"]), batch_size=50, seed=3, **options)
        return [batch["gaps"] for batch in [together, *loader]]

    expected, before = read(), torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            found = read()
    finally:
        torch.set_default_dtype(before)
    for one, other in zip(expected, found, strict=True):
        for name in ["name", "tags"]:
            for tensor, same in zip(one[name], other[name], strict=True):
                assert same.device.type == "cpu" and same.dtype == tensor.dtype and torch.equal(tensor, same)


def test_nulls_follow_their_rule(cluster: Cluster) -> None:
    loader = forebay.torch.Loader(
        cluster.dataset(columns=["id", "gaps", "half"]),
        nulls={"gaps": 0, "gaps.name": "none", "gaps.tags": [8, 9], "half": 0, "half.deep.name": "", "half.deep.tags": []},
        **SETTINGS,
    )
    for batch in loader:
        ids = batch["id"].tolist()
        assert texts(batch["gaps"]["name"]) == ["none" if i % 4 == 0 else "n" for i in ids]
        tags = batch["gaps"]["tags"]
        assert [tags.row(row).tolist() for row in range(len(ids))] == [[8, 9] if i % 4 == 0 else [1] for i in ids]
        deep = ["" if i % 4 == 0 or i % 3 == 0 else f"deep {i}" for i in ids]
        assert texts(batch["half"]["deep"]["name"]) == deep
    with pytest.raises(forebay.InvalidError, match="column 'gaps.name' has .* nulls"):
        next(iter(forebay.torch.Loader(cluster.dataset(columns=["gaps"]), **SETTINGS)))


@pytest.mark.parametrize("way", ["dataset", "direct"])
def test_views_are_read_only_and_keep_their_memory(cluster: Cluster, way: str) -> None:
    """Those of batches that are gone too, while other batches use the loader's memory again."""
    options = {**SETTINGS, "binaries": "views"}
    loader = forebay.torch.Loader(getattr(cluster, way)(columns=["id", "name"]), prefetch_bytes=1, **options)
    kept: list[tuple[int, memoryview]] = []
    for _ in range(3):
        for batch in loader:
            ids, names = batch["id"].tolist(), batch["name"]
            assert all(isinstance(name, memoryview) and name.readonly and name.format == "B" for name in names)
            assert [bytes(name).decode() for name in names] == [f"row {i}" for i in ids]
            kept.append((ids[7], names[7]))
    with pytest.raises(TypeError, match="read-only"):
        kept[0][1][0] = 0
    del loader, batch, names
    assert all(view == f"row {i}".encode() and hash(view) == hash(view.tobytes()) for i, view in kept)


def test_views_are_no_copies(cluster: Cluster) -> None:
    batch = next(iter(forebay.Loader(cluster.dataset("wide"), batch_size=20)))
    values = torch.utils.dlpack.from_dlpack(batch["blob"].items()[0])
    values[5 * 100_000 + 3] = 77
    assert [view[3] for view in batch["blob"].views() if view is not None] == [0] * 5 + [77] + [0] * 14


def test_views_of_nulls_follow_their_rule(cluster: Cluster) -> None:
    rules: dict[str, Any] = {"gaps": 0, "gaps.name": "none", "gaps.tags": [8, 9]}
    options = {**SETTINGS, "binaries": "views"}
    for batch in forebay.torch.Loader(cluster.dataset(columns=["id", "gaps"]), epochs=1, nulls=rules, **options):
        gone = [i % 4 == 0 for i in batch["id"].tolist()]
        assert batch["gaps"]["name"] == [b"none" if is_gone else b"n" for is_gone in gone]
    with pytest.raises(forebay.InvalidError, match="nothing but a value of type str can stand"):
        list(forebay.torch.Loader(cluster.dataset(columns=["gaps"]), epochs=1, nulls={**rules, "gaps.name": 0}, **options))


def test_rows_by_number(cluster: Cluster) -> None:
    data = forebay.torch.MapDataset(cluster.dataset(columns=COLUMNS), binaries="raw", ragged="raw")
    assert bytes(data[17]["name"].tolist()) == b"row 17" and data[17]["tags"].tolist() == [0]
    rows = [599, 2, 301, 7]
    batch = data.collate(data.__getitems__(rows))
    assert texts(batch["name"]) == [f"row {i}" for i in rows]
    assert bytes(batch["name"].row(-1).tolist()) == b"row 7" and bytes(batch["name"].row(-4).tolist()) == b"row 599"
    for wrong in [4, -5]:
        with pytest.raises(IndexError):
            batch["name"].row(wrong)
    views = forebay.torch.MapDataset(cluster.dataset(columns=COLUMNS), binaries="views", ragged="raw")
    assert views[17]["name"] == b"row 17" and views[17]["name"].readonly
    assert [batch["tags"].row(at).tolist() for at in range(4)] == [list(range(i % 4)) for i in rows]


@pytest.mark.parametrize("options", [{"binaries": "x"}, {"ragged": "x"}])
def test_other_forms_are_refused(cluster: Cluster, options: Any) -> None:
    with pytest.raises(forebay.InvalidError, match="='x': there are 'list'"):
        forebay.torch.Loader(cluster.dataset(), batch_size=10, **options)
