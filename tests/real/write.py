#!/usr/bin/env python3
"""Writes datasets by pandas, Polars, DuckDB, Hugging Face datasets and deltalake, and what pyarrow.dataset reads from each: write.py FOLDER

As scripts/make_real_tables.py, whose form of FOLDER/cases.json this is.
"""

import datetime as dt
import decimal
import json
import pathlib
import sys

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "scripts"))
from make_real_tables import ROWS, Corpus, ids, texts  # noqa: E402


def keys(c, name):
    """All objects that pyarrow would count, as it names them."""
    root = c.root / name
    found = [str(path.relative_to(root)) for path in root.rglob("*.parquet") if path.stat().st_size]
    return sorted(key for key in found if not any(part[0] in "_." for part in key.split("/")))


def case(c, name, **options):
    c.case(name, keys(c, name), **options)


def folder(c, name):
    path = c.root / name
    path.mkdir(parents=True)
    return path


def of_pandas(c):
    days = pd.date_range("2024-01-01", periods=ROWS, freq="h")
    frame = pd.DataFrame({"id": np.arange(ROWS), "x": np.where(np.arange(ROWS) % 3 == 0, np.nan, 0.5), "at": days})
    frame.set_index("id").to_parquet(folder(c, "pandas-index") / "a.parquet")
    case(c, "pandas-index")
    zoned = frame.assign(at=days.tz_localize("Europe/Zurich"), text=[f"t {i}" for i in range(ROWS)])
    zoned.to_parquet(folder(c, "pandas-zones") / "a.parquet", compression="gzip")
    case(c, "pandas-zones")
    kinds = {"i": "Int16", "b": "boolean", "s": "string", "f": "Float32"}
    values = {"i": [None, 3, -4], "b": [True, None, False], "s": ["a", "ü", None], "f": [0.5, None, -1.5]}
    nullable = pd.DataFrame({name: pd.array(values[name] * (ROWS // 3), dtype=kind) for name, kind in kinds.items()})
    nullable.to_parquet(folder(c, "pandas-nullable") / "a.parquet")
    nullable.assign(new=1).to_parquet(c.root / "pandas-nullable" / "b.parquet", row_group_size=100)
    case(c, "pandas-nullable")
    labels = frame.assign(city=[["Zürich HB", "a/b=c", "Bern"][i % 3] for i in range(ROWS)], year=2020 + frame["id"] % 3)
    labels.to_parquet(folder(c, "pandas-partitioned"), partition_cols=["city", "year"])
    case(c, "pandas-partitioned")
    # Float where there are nulls, int where there are none: as a job that runs each day leaves it.
    daily_folder = folder(c, "pandas-daily")
    for i in range(3):
        daily = pd.DataFrame({"id": range(ROWS), "count": [None if i == 1 and j % 7 == 0 else j for j in range(ROWS)]})
        daily.to_parquet(daily_folder / f"{i}.parquet")
    case(c, "pandas-daily")


def of_polars(c):
    days = [dt.date(2024, 1, 1) + dt.timedelta(days=i) for i in range(ROWS)]
    frame = pl.DataFrame(
        {
            "id": range(ROWS),
            "t": [None if i % 7 == 0 else f"text {i} ü" for i in range(ROWS)],
            "day": days,
            "at": pl.Series([dt.datetime(2024, 1, 1, 0, 0, i % 60, i) for i in range(ROWS)], dtype=pl.Datetime("us", "UTC")),
            "money": pl.Series([decimal.Decimal(i) / 4 for i in range(ROWS)], dtype=pl.Decimal(12, 2)),
            "list": [list(range(i % 4)) for i in range(ROWS)],
            "struct": [{"a": i, "b": str(i)} for i in range(ROWS)],
            "small": pl.Series([i % 100 for i in range(ROWS)], dtype=pl.Int8),
        }
    )
    frame.write_parquet(folder(c, "polars") / "a.parquet", row_group_size=64)
    frame.with_columns(new=pl.lit(1.5)).write_parquet(c.root / "polars" / "b.parquet", compression="lz4")
    case(c, "polars")
    words = pl.Series([["red", "green", "blue"][i % 3] for i in range(ROWS)], dtype=pl.Categorical)
    frame.select("id", c=words).write_parquet(folder(c, "polars-categories") / "a.parquet")
    plain = pa.schema([("id", pa.int64()), ("c", pa.large_string())])
    case(c, "polars-categories", schema=plain)
    for year in [2024, 2025]:
        for month in [1, 12]:
            path = folder(c, f"polars-partitioned/year={year}/month={month}")
            frame.select("id", "t").write_parquet(path / "00000000.parquet")
    case(c, "polars-partitioned")


def of_duckdb(c):
    db = duckdb.connect()
    db.sql(
        f"""create table t as select i::bigint as id, case when i % 7 = 0 then null else 'text ' || i end as t, i % 3 as part,
        (i / 4)::decimal(12, 2) as money, date '2024-01-01' + i::integer as day, timestamp '2024-01-01' + interval (i) minute as at,
        timestamptz '2024-01-01 00:00:00+00' + interval (i) second as utc, [i, i + 1] as list, {{'a': i, 'b': 'x'}} as struct, i::utinyint as u8,
        (i % 2 = 0) as flag, i::float / 3 as f32 from range(200) r(i)"""
    )
    db.sql(f"copy t to '{folder(c, 'duckdb')}/a.parquet' (format parquet, row_group_size 2048)")
    db.sql(f"copy (select *, 'new' as more from t) to '{c.root}/duckdb/b.parquet' (format parquet, codec zstd)")
    case(c, "duckdb")
    db.sql(f"copy t to '{c.root}/duckdb-partitioned' (format parquet, partition_by (part))")
    case(c, "duckdb-partitioned")
    db.sql(f"copy (select id, map([t], [id]) as m from t where t is not null) to '{folder(c, 'duckdb-maps')}/data_0.parquet' (format parquet)")
    case(c, "duckdb-maps")


def of_hugging_face(c):
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "tokens": datasets.Sequence(datasets.Value("int32")),
            "image": datasets.Features({"bytes": datasets.Value("binary"), "path": datasets.Value("string")}),
        }
    )
    rows = {
        "text": [f"text {i}" for i in range(ROWS)],
        "label": [i % 2 for i in range(ROWS)],
        "tokens": [list(range(i % 9)) for i in range(ROWS)],
        "image": [{"bytes": bytes([i % 256]) * 20, "path": None if i % 2 else f"{i}.png"} for i in range(ROWS)],
    }
    whole = datasets.Dataset.from_dict(rows, features=features)
    path = folder(c, "hugging-face") / "data"
    path.mkdir()
    for i in range(3):
        whole.shard(3, i).to_parquet(path / f"train-0000{i}-of-00003.parquet")
    (c.root / "hugging-face" / "README.md").write_text("# data")
    case(c, "hugging-face")
    grown = whole.remove_columns("image").add_column("source", ["web"] * ROWS)
    path = folder(c, "hugging-face-grown")
    whole.remove_columns("image").to_parquet(path / "0.parquet")
    grown.to_parquet(path / "1.parquet")
    case(c, "hugging-face-grown")


def of_deltalake(c):
    """The objects of a table that was only appended to, read without its log."""
    for i in range(3):
        columns = {"id": ids(start=i * ROWS), "t": texts(), "part": pa.array([["a", "b"][j % 2] for j in range(ROWS)])}
        write_deltalake(str(c.root / "without-log"), pa.table(columns), mode="append", partition_by=["part"])
    assert len(DeltaTable(str(c.root / "without-log")).file_uris()) == 6
    case(c, "without-log")


def main():
    corpus = Corpus(sys.argv[1])
    for make in [of_pandas, of_polars, of_duckdb, of_hugging_face, of_deltalake]:
        make(corpus)
    (corpus.root / "cases.json").write_text(json.dumps(corpus.cases, indent=1))


if __name__ == "__main__":
    main()
