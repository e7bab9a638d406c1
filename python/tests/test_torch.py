"""Batches as dicts of torch tensors: the values of the object store, in memory that belongs to the batch."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Cluster, needs

import forebay

torch = needs("torch")

import forebay.torch

NUMBERS = ["id", "x", "image", "flag", "blob", "at"]
SETTINGS: dict[str, Any] = {"global_batch": 50, "seed": 3, "shuffle": 2}


def batches(cluster: Cluster, columns: list[str], **options: Any) -> list[forebay.torch.Batch]:
    return list(forebay.torch.Loader(cluster.dataset(), columns=columns, **{**SETTINGS, **options}))


def test_tensors_hold_the_values(cluster: Cluster, table: pa.Table) -> None:
    shapes = {"id": [50], "x": [50], "image": [50, 12], "flag": [50], "blob": [50, 4], "at": [50]}
    types = [torch.int64, torch.float32, torch.uint8, torch.bool, torch.uint8, torch.int64]
    all_batches = batches(cluster, NUMBERS)
    assert len(all_batches) == 12
    for batch in all_batches:
        assert {name: list(tensor.shape) for name, tensor in batch.items()} == shapes
        assert [tensor.dtype for tensor in batch.values()] == types
        rows = table.take(batch.sample_ids.tolist())
        for name in ["id", "x", "image", "flag"]:
            assert batch[name].tolist() == rows[name].to_pylist(), name
        assert [bytes(row) for row in batch["blob"].tolist()] == rows["blob"].to_pylist()
        assert batch["at"].tolist() == rows["at"].cast(pa.int64()).to_pylist()
        assert batch.mask is None and batch.epoch == 0 and batch.sample_ids.dtype == torch.int64


def test_strings_and_structs(cluster: Cluster, table: pa.Table) -> None:
    for batch in batches(cluster, ["name", "place", "id"]):
        assert batch["name"] == [f"row {i}" for i in batch["id"].tolist()]
        assert torch.equal(batch["place"]["north"], batch["id"].int())
        assert torch.equal(batch["place"]["east"], -batch["id"].int())


def test_nulls_need_a_rule(cluster: Cluster) -> None:
    with pytest.raises(forebay.InvalidError, match=r"column 'age' has \d+ nulls.*pass nulls=\{'age': VALUE\}"):
        batches(cluster, ["age"])
    with pytest.raises(forebay.InvalidError, match="'none'"):
        batches(cluster, ["age"], nulls={"none": 0})
    for batch in batches(cluster, ["id", "age"], nulls={"age": -7}):
        assert batch["age"].tolist() == [-7 if i % 5 == 0 else i for i in batch["id"].tolist()]


def test_nulls_of_numbers_without_a_sign(tmp_path: Path) -> None:
    types = {"b": pa.uint8(), "h": pa.uint16(), "w": pa.uint32(), "d": pa.uint64()}
    columns = {name: pa.array([1, None, 3], type) for name, type in types.items()}
    pq.write_table(pa.table(columns), tmp_path / "0.parquet")
    data = forebay.dataset(tmp_path.as_uri(), direct=True)
    for filler in [0, 7, "most"]:
        fillers: Any = {name: 2**type.bit_width - 1 if filler == "most" else filler for name, type in types.items()}
        [batch] = forebay.torch.Loader(data, batch_size=3, shuffle=None, nulls=fillers, epochs=1)
        assert {name: batch[name].tolist() for name in types} == {name: [1, fillers[name], 3] for name in types}


def test_numpy_s_numbers_stand_in_place_of_nulls(tmp_path: Path) -> None:
    numpy = needs("numpy")
    pq.write_table(pa.table({"i": pa.array([None, 2]), "f": pa.array([None, 0.5])}), tmp_path / "0.parquet")
    data = forebay.dataset(tmp_path.as_uri(), direct=True)
    for number in [numpy.float32(1.5), numpy.float16("inf")]:
        fillers: Any = {"i": numpy.int64(5), "f": number}
        [batch] = forebay.torch.Loader(data, batch_size=2, shuffle=None, nulls=fillers, epochs=1)
        assert (batch["i"].tolist(), batch["f"].tolist()) == ([5, 2], [float(number), 0.5])


def test_a_shuffle_is_no_truth(cluster: Cluster) -> None:
    with pytest.raises(forebay.InvalidError, match=r"shuffle=True: pass how many segments are mixed, .* None"):
        forebay.torch.Loader(cluster.dataset(), batch_size=10, shuffle=True)


def test_nulls_of_structs_are_their_fields(cluster: Cluster, table: pa.Table) -> None:
    """`half` is null itself, `half.north` too, and `half.deep.name` below two structs."""
    columns = ["id", "half"]
    whole = {"half.north": -1, "half.deep": 0, "half.deep.name": "none", "half.deep.tags": [7]}
    for batch in batches(cluster, columns, nulls=whole, ragged="list"):
        half, rows = batch["half"], table.take(batch.sample_ids.tolist())["half"].to_pylist()
        deep = [{} if row is None or row["deep"] is None else row["deep"] for row in rows]
        norths = [None if row is None else row["north"] for row in rows]
        assert half["north"].tolist() == [-1 if north is None else north for north in norths]
        assert half["deep"]["size"].tolist() == [row.get("size", 0) for row in deep]
        assert half["deep"]["name"] == [row.get("name", "none") for row in deep]
        assert [tags.tolist() for tags in half["deep"]["tags"]] == [row.get("tags", [7]) for row in deep]
    arrow = next(iter(forebay.Loader(cluster.dataset(), columns=columns, **SETTINGS)))
    north = dict(arrow["half"].fields())["north"]
    expected = pa.record_batch(arrow)["half"].flatten()[0]
    assert pa.array(north).equals(expected) and north.null_count == expected.null_count > 0
    with pytest.raises(forebay.InvalidError, match=r"column 'half.north' has \d+ nulls.*pass nulls=\{'half.north': VALUE\}"):
        batches(cluster, columns, nulls={"half.deep": 0}, ragged="list")
    with pytest.raises(forebay.InvalidError, match="'half.south', which is none of id, half.north, half.deep.size"):
        batches(cluster, columns, nulls={"half.south": 0})


@pytest.mark.parametrize(
    ("column", "value", "wanted"),
    [
        ("age", 0.5, "a whole number from -2147483648 to 2147483647"),
        ("age", 1 << 31, "a whole number from -2147483648 to 2147483647"),
        ("age", "none", "a whole number"),
        ("vector", [1, 2], "a number"),
        ("vector", 1e39, r"a number of at most 3\.403e\+38"),
        pytest.param("vector", -(10**400), "a number of at most", id="vector-huge"),
        ("gaps.name", 0, "a value of type str"),
        ("gaps.tags", 0, r"a list, such as \[\]"),
        ("gaps.tags", [0.5], "a whole number"),
        ("gaps.flag", 2, "True or False"),
    ],
)
def test_rules_that_do_not_fit(cluster: Cluster, column: str, value: Any, wanted: str) -> None:
    rules = {"gaps.name": "", "gaps.tags": [], "gaps.flag": False, column: value}
    rules = {name: rule for name, rule in rules.items() if name.split(".")[0] == column.split(".")[0]}
    told = rf"nulls= has .* for column '{column}' of type .*, where nothing but {wanted}.* can stand: pass nulls="
    with pytest.raises(forebay.InvalidError, match=told):
        batches(cluster, [column.split(".")[0]], nulls=rules, ragged="pad")


def test_lists_that_are_null(cluster: Cluster) -> None:
    with pytest.raises(forebay.InvalidError, match=r"column 'gaps.name' has \d+ nulls"):
        batches(cluster, ["gaps"], ragged="list")
    rules = {"gaps.flag": True, "gaps.name": "x", "gaps.tags": [3, 4]}
    for batch in batches(cluster, ["id", "gaps"], nulls=rules, ragged="pad"):
        gone = [i % 4 == 0 for i in batch["id"].tolist()]
        expected = [[3, 4] if is_gone else [1, 0] for is_gone in gone]
        assert batch["gaps"]["tags"].tolist() == expected and batch["gaps"]["flag"].tolist() == gone


@pytest.mark.parametrize("way", ["dataset", "direct"])
def test_filling_nulls_writes_to_no_one_else_s_memory(cluster: Cluster, way: str) -> None:
    ds = getattr(cluster, way)(columns=["id", "vector"])
    for shuffle in [None, 2]:
        loader = forebay.torch.Loader(ds, batch_size=10, shuffle=shuffle, nulls={"vector": -1})
        for _ in range(2):
            loader.set_epoch(0)
            for batch in loader:
                expected = [[-1, -1] if i % 7 == 0 else [i, i + 1] for i in batch["id"].tolist()]
                assert batch["vector"].tolist() == expected
                batch["vector"].fill_(3)


def test_ragged_columns_need_a_rule(cluster: Cluster) -> None:
    with pytest.raises(forebay.InvalidError, match="column 'tags' .* pass ragged="):
        batches(cluster, ["tags"])
    with pytest.raises(forebay.InvalidError, match="there are 'list'"):
        batches(cluster, ["tags"], ragged="x")
    lists = batches(cluster, ["id", "tags"], ragged="list")
    padded = batches(cluster, ["id", "tags"], ragged="pad")
    for of_lists, of_pads in zip(lists, padded, strict=True):
        expected = [list(range(i % 4)) for i in of_lists["id"].tolist()]
        assert [tags.tolist() for tags in of_lists["tags"]] == expected
        assert of_pads["tags"].tolist() == [row + [0] * (3 - len(row)) for row in expected]


def test_lists_that_were_filled_up_keep_their_lengths(cluster: Cluster) -> None:
    """Zeros that are values differ from those that fill up; a null has the length of what stands in its place."""
    rules = {"gaps.flag": True, "gaps.name": "x", "gaps.tags": [0, 0, 0]}
    columns = ["id", "tags", "gaps", "half"]
    whole = {**rules, "half": 0, "half.deep.name": "", "half.deep.tags": []}
    for batch in batches(cluster, columns, nulls=whole, ragged="pad"):
        rows = batch["id"].tolist()
        assert list(batch) == ["id", "tags", "tags_lengths", "gaps", "half"]
        assert batch["tags_lengths"].tolist() == [i % 4 for i in rows] and batch["tags_lengths"].dtype == torch.int64
        assert batch["gaps"]["tags_lengths"].tolist() == [3 if i % 4 == 0 else 1 for i in rows]
        deep = [0 if i % 4 == 0 or i % 3 == 0 else 2 for i in rows]
        assert batch["half"]["deep"]["tags_lengths"].tolist() == deep
        assert batch.to("meta")["tags_lengths"].device.type == "meta"
    data = forebay.torch.MapDataset(cluster.dataset(columns=["tags"]), ragged="pad")
    together = data.collate(data.__getitems__([599, 3, 250, 0]))
    assert together["tags_lengths"].tolist() == [3, 3, 2, 0] and together["tags"].shape == (4, 3)
    assert int(data[250]["tags_lengths"]) == 2
    for ragged in ["list", "raw"]:
        assert list(batches(cluster, ["tags"], ragged=ragged)[0]) == ["tags"]


def test_lengths_need_a_name_of_their_own(tmp_path: Path) -> None:
    lists = pa.array([[1], []])
    place = pa.StructArray.from_arrays([lists, lists], ["a", "a_lengths"])
    pq.write_table(pa.table({"a": lists, "place": place, "a_lengths": lists}), tmp_path / "0.parquet")
    data = forebay.dataset(tmp_path, direct=True)
    settings: dict[str, Any] = {"batch_size": 2, "shuffle": None}
    for columns, name in [(["a", "a_lengths"], "a"), (["place"], "place.a")]:
        with pytest.raises(forebay.InvalidError, match=f"'{name}' have no place, as there is a column '{name}_lengths': leave"):
            next(iter(forebay.torch.Loader(data, columns=columns, ragged="pad", **settings)))
    assert list(next(iter(forebay.torch.Loader(data, columns=["a"], ragged="pad", **settings)))) == ["a", "a_lengths"]


def shapes(folder: Path) -> pa.Table:
    """Tensors of one shape in columns, structs and lists, some with their dimensions in another order."""
    kinds = {
        "plain": pa.fixed_shape_tensor(pa.float32(), [2, 3]),
        "turned": pa.fixed_shape_tensor(pa.float32(), [2, 3], dim_names=["C", "H"], permutation=[1, 0]),
        "three": pa.fixed_shape_tensor(pa.float32(), [1, 2, 3], permutation=[2, 0, 1]),
        "one": pa.fixed_shape_tensor(pa.float32(), [6]),
    }
    flat = pa.array([[float(6 * row + at) for at in range(6)] for row in range(8)], pa.list_(pa.float32(), 6))
    tensors = {name: pa.ExtensionArray.from_storage(kind, flat) for name, kind in kinds.items()}
    holes = pa.array([None if row % 2 else [float(row)] * 6 for row in range(8)], pa.list_(pa.float32(), 6))
    columns = {
        **tensors,
        "flat": flat,
        "place": pa.StructArray.from_arrays([tensors["turned"]], ["turned"]),
        "list": pa.ListArray.from_arrays(pa.array(range(9), pa.int32()), tensors["plain"]),
        "holes": pa.ExtensionArray.from_storage(kinds["turned"], holes),
    }
    (folder / "shapes").mkdir()
    pq.write_table(pa.table(columns), folder / "shapes/0.parquet")
    return pa.table(columns)


@pytest.mark.parametrize("way", ["dataset", "direct"])
def test_tensors_of_arrow_have_their_shape(tmp_path: Path, way: str) -> None:
    numpy = needs("numpy")
    table = shapes(tmp_path)
    own = Cluster(tmp_path, 1)
    try:
        data = getattr(own, way)("shapes")
        [batch] = forebay.torch.Loader(data, batch_size=8, shuffle=None, epochs=1, ragged="pad", nulls={"holes": -1})
        rows = forebay.torch.MapDataset(data, columns=["turned"])
        row, together = rows[3]["turned"], rows.collate(rows.__getitems__([3, 1]))["turned"]
    finally:
        own.stop()
    assert torch.equal(row, batch["turned"][3]) and torch.equal(together, batch["turned"][[3, 1]])
    for name in ["plain", "turned", "three", "one"]:
        kind = table.schema.field(name).type
        order = [0, *(1 + dimension for dimension in kind.permutation or range(len(kind.shape)))]
        expected = numpy.arange(48, dtype=numpy.float32).reshape(8, *kind.shape).transpose(order)
        if name != "three":
            # Where dimensions go round, pyarrow 26 repeats values and leaves others out.
            assert numpy.array_equal(table[name].combine_chunks().to_numpy_ndarray(), expected)
        assert batch[name].shape == expected.shape and numpy.array_equal(batch[name].numpy(), expected), name
    assert batch["flat"].shape == (8, 6) and batch["turned"].shape == (8, 3, 2)
    assert torch.equal(batch["place"]["turned"], batch["turned"])
    assert batch["list"].shape == (8, 1, 2, 3) and torch.equal(batch["list"][:, 0], batch["plain"])
    assert [row.unique().tolist() for row in batch["holes"]] == [[-1.0] if row % 2 else [float(row)] for row in range(8)]
    batch["turned"][0, 2, 1] = 77
    assert batch["turned"][0].tolist() == [[0, 3], [1, 4], [2, 77]]


@pytest.mark.parametrize("said", ['{"shape": [2, 2]}', '{"shape": [2, 3], "permutation": [0, 0]}', '{"shape": "x"}', "{}", "no JSON"])
def test_tensors_of_arrow_whose_shape_makes_no_sense(tmp_path: Path, said: str) -> None:
    metadata = {"ARROW:extension:name": "arrow.fixed_shape_tensor", "ARROW:extension:metadata": said}
    field = pa.field("a", pa.list_(pa.float32(), 6), metadata=metadata)
    rows = pa.array([[0.0] * 6], pa.list_(pa.float32(), 6))
    pq.write_table(pa.table([rows], schema=pa.schema([field])), tmp_path / "0.parquet")
    data = forebay.dataset(tmp_path, direct=True)
    with pytest.raises(forebay.InvalidError, match="column 'a' is said to hold tensors of one shape, .* make no sense .*: leave it"):
        forebay.torch.Loader(data, batch_size=1)
    assert len(next(iter(forebay.Loader(data, batch_size=1)))) == 1


def test_a_batch_has_the_digest_of_its_rows(cluster: Cluster) -> None:
    arrow = forebay.Loader(cluster.dataset(), columns=["id"], ending="pad", **SETTINGS)
    digests = [batch.digest for batch in arrow]
    assert [batch.digest for batch in batches(cluster, ["id"], ending="pad")] == digests
    assert [batch.digest for batch in batches(cluster, ["id"], ending="pad", device="cpu")] == digests
    [first, *_] = batches(cluster, ["id"], ending="pad")
    assert first.to("cpu").digest == pickle.loads(pickle.dumps(first)).digest == digests[0]


def test_after_a_batch_that_cannot_be_the_run_stands_before_it(cluster: Cluster) -> None:
    loader = forebay.torch.Loader(cluster.dataset(), columns=["age"], **SETTINGS)
    state = loader.state_dict()
    with pytest.raises(forebay.InvalidError):
        next(iter(loader))
    assert loader.state_dict() == state


@pytest.mark.parametrize("way", ["dataset", "direct"])
def test_memory_is_shared_and_the_batch_s_own(cluster: Cluster, way: str) -> None:
    """Whatever is done to a batch changes nothing that is read later, and a batch that is kept stays as it is."""
    ds = getattr(cluster, way)(columns=NUMBERS)
    arrow = next(iter(forebay.Loader(ds, **SETTINGS)))
    once, twice = (torch.utils.dlpack.from_dlpack(arrow["image"]) for _ in range(2))
    assert once.data_ptr() == twice.data_ptr()
    loader = forebay.torch.Loader(ds, **SETTINGS)
    clean = [{name: tensor.clone() for name, tensor in batch.items()} for batch in loader]
    kept = []
    loader.set_epoch(0)
    for batch, expected in zip(loader, clean, strict=True):
        assert all(torch.equal(batch[name], expected[name]) for name in expected)
        if batch.step % 2:
            kept.append((batch, expected))
        else:
            for tensor in batch.values():
                tensor.fill_(1)
    loader.close()
    for batch, expected in kept:
        assert all(torch.equal(batch[name], expected[name]) for name in expected)
    assert ds.take([0]).column("id").to_pylist() == [0]
    again = forebay.torch.Loader(ds, **SETTINGS)
    for batch, expected in zip(again, clean, strict=True):
        assert all(torch.equal(batch[name], expected[name]) for name in expected)


def test_rows_of_a_scan_are_copied(cluster: Cluster) -> None:
    """A scan's memory may be a segment's that others read too."""
    for ds in [cluster.dataset(columns=["id"]), cluster.direct(columns=["id"])]:
        batch = next(iter(ds.scan()))
        torch.utils.dlpack.from_dlpack(batch["id"]).zero_()
        assert pa.array(batch["id"]).to_pylist()[:3] == [0, 1, 2]
        assert ds.head(3)["id"].to_pylist() == [0, 1, 2]


def test_numpy_takes_columns_too(cluster: Cluster) -> None:
    numpy = needs("numpy")
    batch = next(iter(forebay.Loader(cluster.dataset(), columns=["id", "image"], **SETTINGS)))
    image = numpy.from_dlpack(batch["image"])
    assert image.shape == (50, 12) and image.dtype == numpy.uint8
    assert (image[:, 0] == numpy.from_dlpack(batch["id"]) % 256).all()


def test_the_state_is_a_checkpoint_s(cluster: Cluster) -> None:
    loader = forebay.torch.Loader(cluster.dataset(), columns=["id"], **SETTINGS)
    rest = [batch["id"].tolist() for batch in loader][3:]
    loader.set_epoch(0)
    for _, _ in zip(range(3), loader, strict=False):
        pass
    file = io.BytesIO()
    torch.save({"data": loader.state_dict()}, file)
    file.seek(0)
    resumed = forebay.torch.Loader(cluster.dataset(), columns=["id"], **SETTINGS)
    resumed.load_state_dict(torch.load(file, weights_only=True)["data"])
    assert [batch["id"].tolist() for batch in resumed] == rest


def test_the_array_protocols_get_what_they_ask_for_or_a_buffer_error(cluster: Cluster) -> None:
    numpy = needs("numpy")
    batch = next(iter(forebay.Loader(cluster.dataset(), columns=["id", "flag", "name"], **SETTINGS)))
    shared = [numpy.from_dlpack(batch["id"], copy=copy) for copy in (False, None)]
    copied = numpy.from_dlpack(batch["id"], copy=True)
    assert numpy.shares_memory(*shared) and not numpy.shares_memory(shared[0], copied)
    assert (copied == shared[0]).all()
    scanned = next(iter(cluster.dataset(columns=["id"]).scan()))["id"]
    for column in [batch["flag"], scanned]:
        assert len(numpy.from_dlpack(column)) == len(column)
        with pytest.raises(BufferError, match="as a copy only"):
            numpy.from_dlpack(column, copy=False)
        with pytest.raises(forebay.InvalidError, match="as a copy only"):
            torch.from_dlpack(column, copy=False)
    with pytest.raises(BufferError, match="cannot be a tensor"):
        batch["name"].__dlpack__()
    with pytest.raises(BufferError, match="memory of the CPU"):
        batch["id"].__dlpack__(dl_device=(2, 0))
    assert batch["id"].__dlpack_device__() == (1, 0)
    assert '"dltensor"' in repr(batch["id"].__dlpack__()) and '"dltensor"' in repr(batch["id"].__dlpack__(max_version=(0, 8)))
    assert '"dltensor_versioned"' in repr(batch["id"].__dlpack__(max_version=(1, 1)))


def test_all_columns_at_once(cluster: Cluster, table: pa.Table) -> None:
    """Capsules of columns that are tensors, in their order, and nothing of others; those that nobody takes are freed."""
    columns = ["name", "x", "age", "image", "id"]
    batch = next(iter(forebay.Loader(cluster.dataset(), columns=columns, **SETTINGS)))
    blocks = batch.blocks()
    assert [(capsule is None, count) for capsule, count in blocks] == [(gone, 1) for gone in [True, False, True, False, False]]
    rows = table.take(pa.array(batch.sample_ids))
    for name, (capsule, _) in zip(columns, blocks, strict=True):
        if capsule is not None:
            assert torch.utils.dlpack.from_dlpack(capsule).tolist() == rows[name].to_pylist()
    for batch in batches(cluster, columns, nulls={"age": 0}):
        assert list(batch) == columns


def test_columns_without_a_form(cluster: Cluster) -> None:
    batch = next(iter(forebay.Loader(cluster.dataset(), columns=["name", "tags"], **SETTINGS)))
    with pytest.raises(forebay.InvalidError, match="`name` of type Utf8: cannot be a tensor"):
        torch.utils.dlpack.from_dlpack(batch["name"])
    with pytest.raises(forebay.NotFoundError, match="no column `x`"):
        batch["x"]
