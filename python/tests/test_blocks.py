"""Tables of many columns: tensors that are cut from one piece of memory, and are as good as tensors of their own."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Cluster, needs

import forebay

torch = needs("torch")

import forebay.torch

FLOATS = [f"f{at:02}" for at in range(20)]
SETTINGS: dict[str, Any] = {"batch_size": 32, "seed": 3, "shuffle": 2}


@pytest.fixture(scope="module")
def broad(data: Any) -> pa.Table:
    """The rows, as pyarrow reads them from the file."""
    return pq.read_table(data / "columns")


def read(cluster: Cluster, **options: Any) -> Iterator[forebay.torch.Batch]:
    options = {**SETTINGS, **options}
    yield from forebay.torch.Loader(cluster.dataset("columns"), epochs=1, **options)


def first(cluster: Cluster, **options: Any) -> forebay.torch.Batch:
    return next(read(cluster, **options))


def storages(batch: forebay.torch.Batch, names: list[str]) -> set[int]:
    return {batch[name].untyped_storage().data_ptr() for name in names}


@pytest.mark.parametrize("way", ["dataset", "direct"])
@pytest.mark.parametrize(("ending", "steps"), [("drop", 9), ("pad", 10), ("exact", 10)])
def test_they_hold_the_values(cluster: Cluster, broad: pa.Table, way: str, ending: Any, steps: int) -> None:
    names = [*FLOATS, "id", "label"]
    loader = forebay.torch.Loader(getattr(cluster, way)("columns"), columns=names, epochs=1, ending=ending, **SETTINGS)
    batches = list(loader)
    assert len(batches) == steps
    seen = []
    for batch in batches:
        rows = 12 if ending == "exact" and batch.step == 9 else 32
        assert list(batch) == names
        for name, tensor in batch.items():
            assert tensor.shape == (rows,) and tensor.is_contiguous() and tensor.stride() == (1,)
            assert tensor.dtype == (torch.float32 if name in FLOATS else torch.int64)
            assert tensor.tolist() == broad[name].take(batch.sample_ids.tolist()).to_pylist(), name
        assert len(storages(batch, FLOATS)) == (20 if rows == 12 else 1), "one piece, but where columns end at odd places"
        assert len(storages(batch, ["id", "label"])) == 2, "two are no block"
        assert (batch.mask is None) == (ending != "pad" or batch.step < 9)
        real = slice(None) if batch.mask is None else batch.mask
        seen += batch["id"][real].tolist()
    assert sorted(seen) == sorted(set(seen)) and len(seen) == (288 if ending == "drop" else 300)


def test_each_may_be_written_to(cluster: Cluster, broad: pa.Table) -> None:
    batch = first(cluster, columns=FLOATS)
    before = {name: tensor.clone() for name, tensor in batch.items()}
    for name in FLOATS:
        batch[name].fill_(-1.0)
        before[name].fill_(-1.0)
        assert all(torch.equal(batch[other], before[other]) for other in FLOATS), name
    batch["f03"].requires_grad_()
    batch["f03"].exp().sum().backward()
    assert batch["f03"].grad is not None and not batch["f04"].requires_grad and batch["f03"].is_leaf
    assert not any(tensor._is_view() for tensor in batch.values())


def test_a_change_of_one_is_no_change_of_another(cluster: Cluster) -> None:
    """Autograd counts the changes of what it has kept for a gradient."""
    batch = first(cluster, columns=FLOATS)
    weight = torch.ones(32, requires_grad=True)
    product = (weight * batch["f00"]).sum()
    batch["f01"].mul_(2)
    product.backward()
    assert torch.equal(weight.grad, batch["f00"])
    product = (weight * batch["f00"]).sum()
    batch["f00"].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_memory_belongs_to_the_batch_alone(cluster: Cluster, broad: pa.Table) -> None:
    """Of a batch that is gone one column is kept; all others are written to, and read again."""
    loader = forebay.torch.Loader(cluster.dataset("columns"), columns=[*FLOATS, "id"], prefetch_bytes=1, **SETTINGS)
    kept = []
    for _ in range(4):
        for batch in loader:
            ids = batch["id"].tolist()
            assert batch["f05"].tolist() == [i + 5 / 16 for i in ids]
            kept.append((ids, batch["f19"]))
            for name in FLOATS[:19]:
                batch[name].fill_(-7.0)
    assert all(tensor.tolist() == [i + 19 / 16 for i in ids] for ids, tensor in kept)


def test_a_column_with_nulls_stands_alone(cluster: Cluster, broad: pa.Table) -> None:
    blocks = next(iter(forebay.Loader(cluster.dataset("columns"), **SETTINGS))).blocks()
    assert [(capsule is None, columns) for capsule, columns in blocks] == [(False, 10), (True, 1), (False, 10), *[(False, 1)] * 2]
    for batch in read(cluster, nulls={"age": -5}):
        ids = batch["id"].tolist()
        assert batch["age"].tolist() == [-5 if i % 9 == 0 else i for i in ids]
        assert list(batch) == broad.column_names
        assert all(batch[name].tolist() == broad[name].take(ids).to_pylist() for name in FLOATS)


def test_what_is_saved(cluster: Cluster) -> None:
    """A batch is saved once; a column alone takes the block along, unless it is copied."""
    batch = first(cluster, columns=FLOATS)

    def saved(value: Any) -> int:
        file = io.BytesIO()
        torch.save(value, file)
        file.seek(0)
        again = torch.load(file, weights_only=True)
        assert all(map(torch.equal, again, value)) if isinstance(value, list) else torch.equal(again, value)
        return len(file.getvalue())

    whole = 20 * 32 * 4
    assert whole < saved(list(batch.values())) < whole + 8000
    assert saved(batch["f07"]) - saved(batch["f07"].clone()) == pytest.approx(whole - 128, abs=200)
    few = first(cluster, columns=FLOATS[:7])
    assert len(storages(few, FLOATS[:7])) == 7 and few["f02"].untyped_storage().nbytes() == 128
