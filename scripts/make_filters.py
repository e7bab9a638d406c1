#!/usr/bin/env python3
"""Writes tables and what pyarrow.dataset leaves of them by filters: make_filters.py FOLDER

FOLDER/table/ holds Parquet files below Hive's directories: numbers, texts, dates, decimals with nulls and NaN, columns that some objects
lack or have in another type, statistics of all kinds. FOLDER/N.arrow is the Arrow IPC stream that must be read by filter N, and
FOLDER/filters.json lists the filters in Forebay's grammar, and the columns that are read. FOLDER/plain/ holds the rows of one of them.
FOLDER/clustered/ is a table in order of its column `key`. The files are the same at every run.
"""

import datetime as dt
import decimal
import json
import pathlib
import random
import shutil
import sys

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

ROWS = 400
UTC = dt.timezone.utc


def some(values, every):
    """The values, one of `every` a null."""
    return [None if i % every == 3 else value for i, value in enumerate(values)]


def columns(part):
    """Of one object: values rise within it and from one to the next."""
    numbers = range(part * ROWS, (part + 1) * ROWS)
    floats = [float("nan") if i % 11 == 0 else -0.0 if i % 13 == 0 else i / 4 - 100 for i in numbers]
    start = dt.datetime(2024, 1, 1)
    made = {
        "n": pa.array(numbers, pa.int64()),
        "i": pa.array(some([i // 3 for i in numbers], 7), pa.int64()),
        "all_null": pa.array([None] * ROWS if part < 3 else [i % 5 for i in numbers], pa.int64()),
        "widens": pa.array([i % 100 for i in numbers], pa.int8() if part % 2 else pa.int32()),
        "becomes_float": pa.array([i % 50 for i in numbers], pa.int32()) if part % 2 else pa.array([i / 3 for i in numbers], pa.float64()),
        "u": pa.array([2**64 - 1 - i for i in numbers], pa.uint64()),
        "f": pa.array(some(floats, 9), pa.float64()),
        "f32": pa.array([i / 10 for i in numbers], pa.float32()),
        "t": pa.array(some([f"a beginning that statistics cut off, {'x' * 80} {i:06}" for i in numbers], 5)),
        "word": pa.array(some([["ch", "de", "it's", "", "Zürich"][i // 50 % 5] for i in numbers], 6)),
        "b": pa.array(some([i % 3 == 0 for i in numbers], 4)),
        "d": pa.array(some([start.date() + dt.timedelta(days=i // 10) for i in numbers], 8), pa.date32()),
        "at": pa.array([start + dt.timedelta(minutes=i) for i in numbers], pa.timestamp("us")),
        "utc": pa.array([start.replace(tzinfo=UTC) + dt.timedelta(seconds=i) for i in numbers], pa.timestamp("ms", "UTC")),
        "money": pa.array(some([decimal.Decimal(i) / 4 - 200 for i in numbers], 10), pa.decimal128(9, 2)),
    }
    return made | ({"sometimes": pa.array(some(list(numbers), 3), pa.int64())} if part in (1, 4) else {})


OPTIONS = [
    {},
    {"write_statistics": False},
    {"version": "1.0"},
    {"write_page_index": True, "use_dictionary": False},
    {"data_page_version": "2.0", "compression": "zstd"},
    {"row_group_size": 400},
]

c = ds.field


def cases():
    """Filters in both grammars."""
    day, noon = dt.date(2024, 2, 1), dt.datetime(2024, 1, 1, 12)
    euros, either = decimal.Decimal, pa.scalar
    yield "n > 1000", c("n") > 1000
    yield "n = 777 or n = 778 or n < 3", (c("n") == 777) | (c("n") == 778) | (c("n") < 3)
    yield "n >= 100 and n < 110", (c("n") >= 100) & (c("n") < 110)
    yield "n between 395 and 405", (c("n") >= 395) & (c("n") <= 405)
    yield "n in (1, 401, 2300, 99999)", c("n").isin([1, 401, 2300, 99999])
    yield "n not in (1, 401)", (c("n") != 1) & (c("n") != 401)
    yield "n > 2397.5", c("n") > 2397.5
    yield "i > 700", c("i") > 700
    yield "not i <= 700", ~(c("i") <= 700)
    yield "i is null", c("i").is_null()
    yield "i is not null and i < 20", c("i").is_valid() & (c("i") < 20)
    yield "i is null or i = 5", c("i").is_null() | (c("i") == 5)
    yield "all_null is not null", c("all_null").is_valid()
    yield "all_null = 3 or n < 5", (c("all_null") == 3) | (c("n") < 5)
    yield "not all_null = 3 and n > 2300", ~(c("all_null") == 3) & (c("n") > 2300)
    yield "widens > 97", c("widens") > 97
    yield "widens < 300 and widens > -300 and n < 9", (c("n") < 9)
    yield "becomes_float < 0.5", c("becomes_float") < 0.5
    yield "becomes_float = 7", c("becomes_float") == 7.0
    yield "u < 18446744073709550000", c("u") < either(18446744073709550000, pa.uint64())
    yield "u = 18446744073709551615", c("u") == either(2**64 - 1, pa.uint64())
    yield "f > 400", c("f") > 400.0
    yield "f = 0", c("f") == 0.0
    yield "f != 0 and n < 100", (c("f") != 0.0) & (c("n") < 100)
    yield "not f > -90 and n < 100", ~(c("f") > -90.0) & (c("n") < 100)
    yield "f >= -100 and f <= -99.5", (c("f") >= -100.0) & (c("f") <= -99.5)
    yield "f32 > 0.1 and f32 <= 0.5", (c("f32") > 0.1) & (c("f32") <= 0.5)
    end = f"a beginning that statistics cut off, {'x' * 80} 000"
    yield f"t >= '{end}399'", c("t") >= f"{end}399"
    yield f"t = '{end}200'", c("t") == f"{end}200"
    yield "t like 'b%' or n = 4", c("n") == 4
    yield f"t like '{end}1%'", (c("t") >= f"{end}1") & (c("t") < f"{end}2")
    yield "word = \"ch\"", c("word") == "ch"
    yield "word = 'it''s' and n < 200", (c("word") == "it's") & (c("n") < 200)
    yield "word in ('de', 'Zürich') or word is null", c("word").isin(["de", "Zürich"]) | c("word").is_null()
    yield "word > 'd' and word < 'j'", (c("word") > "d") & (c("word") < "j")
    yield "word = ''", c("word") == ""
    yield "b", c("b")
    yield "not b and n > 2000", ~c("b") & (c("n") > 2000)
    yield "b != true and n < 30", (c("b") != True) & (c("n") < 30)  # noqa: E712
    yield "d = '2024-02-01'", c("d") == either(day)
    yield "d < date '2024-01-03' or d is null", (c("d") < either(dt.date(2024, 1, 3))) | c("d").is_null()
    yield "at >= '2024-01-01 12:00:00' and at < '2024-01-01T12:05:00'", (c("at") >= either(noon, pa.timestamp("us"))) & (c("at") < either(noon + dt.timedelta(minutes=5), pa.timestamp("us")))
    yield "at < date '2024-01-02' and n > 1430", (c("at") < either(dt.datetime(2024, 1, 2), pa.timestamp("us"))) & (c("n") > 1430)
    yield "utc = '2024-01-01T00:10:00Z' or utc = '2024-01-01 01:20:00+01:00'", c("n").isin([600, 1200])
    yield "money > 3.50 and money <= 4", (c("money") > either(euros("3.50"))) & (c("money") <= either(euros("4.00")))
    yield "money = -199.75", c("money") == either(euros("-199.75"))
    yield "sometimes > 500", c("sometimes") > 500
    yield "sometimes is null and n > 2390", c("sometimes").is_null() & (c("n") > 2390)
    yield "year = 2024", c("year") == 2024
    yield "year != 2024 and country = 'ch'", (c("year") != 2024) & (c("country") == "ch")
    yield "country is null", c("country").is_null()
    yield "country > 'd' or n < 3", (c("country") > "d") | (c("n") < 3)
    yield "year = 2025 and n > 1100 or money > 397", ((c("year") == 2025) & (c("n") > 1100)) | (c("money") > either(euros("397.00")))


def main():
    root = pathlib.Path(sys.argv[1])
    shutil.rmtree(root, ignore_errors=True)
    places = [(2024, "ch"), (2024, "de"), (2025, "ch"), (2025, "__HIVE_DEFAULT_PARTITION__"), (2026, "de"), (2026, "fr")]
    schemas = []
    for part, ((year, country), options) in enumerate(zip(places, OPTIONS)):
        path = root / f"table/year={year}/country={country}/{part}.parquet"
        path.parent.mkdir(parents=True)
        table = pa.table(columns(part))
        schemas.append(table.schema)
        pq.write_table(table, path, **({"row_group_size": 60} | options))
    hive = ds.HivePartitioning.discover(infer_dictionary=False, max_partition_dictionary_size=0)
    factory = ds.dataset(root / "table", format="parquet", partitioning=hive)
    plain = pa.unify_schemas(schemas, promote_options="permissive")
    schema = pa.schema([*plain, factory.schema.field("year"), factory.schema.field("country")])
    whole = factory.replace_schema(schema)
    listed = []
    for number, (where, expression) in enumerate(cases()):
        # Objects that directories rule out have no say in Forebay's schema.
        read = ["n", "t", "country"] if number % 2 or "year" in where or "country" in where else schema.names
        table = whole.to_table(filter=expression, columns=read)
        # pyarrow leaves the same without any statistics.
        assert table["n"].equals(whole.to_table().filter(expression)["n"]), where
        assert table.num_rows > 0, where
        with pa.ipc.new_stream(str(root / f"{number}.arrow"), table.schema) as stream:
            stream.write_table(table)
        listed.append({"where": where, "columns": read})
    (root / "plain").mkdir()
    pq.write_table(whole.to_table(filter=(c("n") >= 350) & c("b")), root / "plain/0.parquet", row_group_size=50)
    (root / "clustered").mkdir()
    rows, chance = 200_000, random.Random(1)
    made = {"key": pa.array(range(rows))} | {f"x{i}": pa.array([chance.random() for _ in range(rows)]) for i in range(5)}
    pq.write_table(pa.table(made), root / "clustered/0.parquet", row_group_size=rows // 100)
    (root / "filters.json").write_text(json.dumps(listed, indent=1))


if __name__ == "__main__":
    main()
