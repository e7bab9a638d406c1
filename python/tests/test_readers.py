"""Readers of Arrow's PyCapsule interface take datasets, scans and batches as they are, and find the values of the
object store."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from conftest import Cluster, needs

import forebay

COLUMNS = ["id", "x", "flag", "name", "age", "at"]
SETTINGS: dict[str, Any] = {"batch_size": 50, "seed": 3, "shuffle": 2}


def test_pandas(cluster: Cluster, table: pa.Table) -> None:
    pandas = needs("pandas")
    ds = cluster.dataset(columns=COLUMNS)
    expected = table.select(COLUMNS).to_pandas()
    pandas.testing.assert_frame_equal(pandas.DataFrame.from_arrow(ds), expected)
    pandas.testing.assert_frame_equal(pandas.DataFrame.from_arrow(ds.scan(limit=70)), expected.head(70))
    for batch in forebay.Loader(ds, **SETTINGS):
        ids = pa.array(batch["id"]).to_pylist()
        rows = expected.iloc[ids].reset_index(drop=True)
        pandas.testing.assert_frame_equal(pandas.DataFrame.from_arrow(batch), rows)
        series = pandas.Series.from_arrow(batch["name"])
        assert series.tolist() == [f"row {i}" for i in ids]


def test_duckdb(cluster: Cluster, table: pa.Table) -> None:
    """It finds datasets by the name of their variable."""
    duckdb = needs("duckdb")
    connection = duckdb.connect(config={"threads": 2})
    ds = cluster.dataset(columns=COLUMNS)
    found = connection.sql("select flag, count(*), sum(id), count(age), max(name) from ds group by flag order by flag").fetchall()
    rows = table.to_pylist()

    def group(flag: bool) -> tuple[Any, ...]:
        own = [row for row in rows if row["flag"] == flag]
        ages = sum(row["age"] is not None for row in own)
        return flag, len(own), sum(row["id"] for row in own), ages, max(row["name"] for row in own)

    assert found == [group(False), group(True)]
    other = cluster.dataset("other", columns=["id", "x"])
    joined = connection.sql("select count(*), sum(ds.x + other.x) from ds join other using (id)").fetchall()
    assert joined == [(100, sum(i / 2 for i in range(100)))]
    scan = ds.scan(limit=70)
    assert connection.sql("select count(*), max(id) from scan").fetchall() == [(70, 69)]
    for batch in forebay.Loader(ds, **SETTINGS):
        ids = pa.array(batch["id"]).to_pylist()
        assert connection.sql('select id, epoch_us("at") from batch').fetchall() == [(i, i * 1_000_000) for i in ids]


def test_polars(cluster: Cluster, table: pa.Table) -> None:
    polars = needs("polars")
    ds = cluster.dataset()
    expected = polars.from_arrow(table)
    assert polars.DataFrame(ds).equals(expected)
    assert polars.DataFrame(ds.scan(limit=70)).equals(expected.head(70))
    half = polars.LazyFrame(ds.select(["id", "x"])).filter(polars.col("id") % 2 == 0).select("x").collect()
    assert half["x"].to_list() == [i / 4 for i in range(0, 600, 2)]
    for batch in forebay.Loader(ds, **SETTINGS):
        ids = pa.array(batch["id"]).to_pylist()
        assert polars.DataFrame(batch).equals(expected[ids])
        assert polars.Series(batch["name"]).to_list() == [f"row {i}" for i in ids]
