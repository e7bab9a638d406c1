#!/usr/bin/env python3
"""Writes datasets as real writers leave them, and what pyarrow.dataset reads from each: make_real_tables.py FOLDER

FOLDER/NAME/ holds the objects of a dataset: schemas that grow, Hive's directories, names of Spark and Hive, empty and hidden files.
FOLDER/NAME.arrow is the Arrow IPC stream that must be read of it. FOLDER/cases.json lists for each what Forebay is asked for: the URI below
FOLDER (or the objects of a list, in order) and further options. The files are the same at every run.
"""

import datetime as dt
import decimal
import json
import pathlib
import shutil
import sys

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs
import pyarrow.parquet as pq

ROWS = 300


class Corpus:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        shutil.rmtree(self.root, ignore_errors=True)
        self.cases = []

    def write(self, name, key, columns, rows=ROWS, **options):
        path = self.root / name / key
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns).slice(0, rows), path, row_group_size=max(rows // 2, 1), **options)

    def put(self, name, key, text=b""):
        path = self.root / name / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)

    def case(self, name, keys, *, uri=None, options=(), listed=False, partitions=True, columns=None, schema=None):
        """What pyarrow.dataset reads of the objects `keys`, with one schema for all."""
        base = self.root / name
        hive = ds.HivePartitioning.discover(infer_dictionary=False, max_partition_dictionary_size=0)
        factory = ds.FileSystemDatasetFactory(
            fs.LocalFileSystem(),
            [str(base / key) for key in keys],
            ds.ParquetFileFormat(),
            ds.FileSystemFactoryOptions(partition_base_dir=str(base), partitioning=hive if partitions else None),
        )
        if schema is None:
            # Its inspect() looks at one object; the last of inspect_schemas() is that of the partitions.
            schemas = [pq.read_schema(base / key) for key in keys] + factory.inspect_schemas()[-1:]
            kept = [[field for field in one if not columns or field.name in columns] for one in schemas]
            schema = pa.unify_schemas([pa.schema(fields) for fields in kept], promote_options="permissive")
        table = factory.finish(schema).to_table()
        with pa.ipc.new_stream(str(self.root / f"{name}.arrow"), table.schema) as stream:
            stream.write_table(table)
        options = [*options, *(["--columns", ",".join(columns)] if columns else [])]
        case = {"name": name, "uri": f"{name}{uri or ''}", "options": options}
        self.cases.append(case | ({"list": [f"{name}/{key}" for key in keys]} if listed else {}))


def ids(kind=pa.int64(), start=0):
    return pa.array(range(start, start + ROWS), kind)


def texts(kind=pa.string()):
    return pa.array([None if i % 7 == 0 else f"text {i} ü" for i in range(ROWS)], kind)


def growth(c):
    both = ["a.parquet", "b.parquet"]

    def pair(name, first, second, **options):
        c.write(name, "a.parquet", first)
        c.write(name, "b.parquet", second)
        c.case(name, both, **options)

    pair("added-column", {"id": ids()}, {"id": ids(), "country": texts()})
    pair("dropped-column", {"id": ids(), "country": texts()}, {"id": ids()})
    pair("other-order", {"id": ids(), "t": texts()}, {"t": texts(), "id": ids()})
    pair("wider-int", {"x": pa.array([i % 100 for i in range(ROWS)], pa.int8())}, {"x": ids()})
    pair("unsigned", {"x": ids(pa.uint16())}, {"x": ids(pa.int32(), -5)})
    pair("wider-float", {"x": pa.array([i / 2 for i in range(ROWS)], pa.float32())}, {"x": ids(pa.float64())})
    pair("int-and-float", {"x": ids()}, {"x": pa.array([None if i % 3 else i / 3 for i in range(ROWS)])})
    pair("large-string", {"t": texts()}, {"t": texts(pa.large_string())})
    # pyarrow has no type for both: Forebay reads a dictionary as its values.
    pair("dictionary", {"t": texts().dictionary_encode()}, {"t": texts()}, schema=pa.schema([("t", pa.string())]))
    pair("all-null", {"x": pa.nulls(ROWS), "y": ids()}, {"x": texts(), "y": pa.nulls(ROWS)})
    moments = [dt.datetime(2024, 1, 1) + dt.timedelta(seconds=i) for i in range(ROWS)]
    pair("timestamp-units", {"at": pa.array(moments, pa.timestamp("ms"))}, {"at": pa.array(moments, pa.timestamp("ns"))})
    utc = [moment.replace(tzinfo=dt.timezone.utc) for moment in moments]
    zoned = {unit: {"at": pa.array(utc, pa.timestamp(unit, "UTC"))} for unit in ["ms", "us"]}
    pair("timestamp-zones", zoned["ms"], zoned["us"])
    days = [dt.date(2024, 1, 1) + dt.timedelta(days=i) for i in range(ROWS)]
    pair("dates", {"day": pa.array(days, pa.date32())}, {"day": pa.array(days, pa.date64())})
    money = [decimal.Decimal(i) / 4 for i in range(ROWS)]
    pair("decimals", {"m": pa.array(money, pa.decimal128(8, 2))}, {"m": pa.array(money, pa.decimal128(12, 4))})
    lists = [[j for j in range(i % 5)] for i in range(ROWS)]
    pair("lists", {"l": pa.array(lists, pa.list_(pa.int32()))}, {"l": pa.array(lists, pa.list_(pa.int64()))})
    pair("around-a-conflict", {"id": ids(), "x": ids()}, {"id": ids(), "x": texts()}, columns=["id"])
    narrow = pa.schema([("x", pa.int32())])
    first, second = {"x": ids(pa.int32())}, {"x": ids(), "y": ids()}
    pair("schema-of-one", first, second, options=["--schema-of", "a.parquet"], schema=narrow)
    pair("cases-of-letters", {"ID": ids()}, {"ID": ids(), "id": texts()})
    c.write("no-rows", "a.parquet", {"id": ids(), "extra": texts()}, rows=0)
    c.write("no-rows", "b.parquet", {"id": ids()})
    c.case("no-rows", both)


def partitions(c):
    def hive(name, keys, **options):
        for i, key in enumerate(keys):
            c.write(name, key, {"id": ids(start=i * ROWS)} | ({"new": texts()} if i == 1 else {}))
        c.case(name, sorted(keys), **options)

    hive("hive-int", ["year=2024/month=01/a.parquet", "year=2024/month=02/a.parquet", "year=2025/month=01/a.parquet"])
    hive("hive-text", ["country=ch/a.parquet", "country=de/a.parquet", "country=007/a.parquet"])
    hive("hive-null", ["k=__HIVE_DEFAULT_PARTITION__/a.parquet", "k=3/a.parquet", "k=-4/a.parquet"])
    hive("only-partitions", ["a=1/b=x/a.parquet", "a=2/b=y/a.parquet"], columns=["a", "b"])
    encoded = ["city=Z%C3%BCrich%20HB/a.parquet", "city=a%2Fb%3Dc/a.parquet", "city=plain é/a.parquet"]
    hive("hive-encoded", encoded)
    hive("hive-depths", ["year=2024/a.parquet", "year=2024/month=1/b.parquet", "c.parquet"])
    hive("hive-large", ["n=1/a.parquet", "n=3000000000/a.parquet"])
    hive("no-partitions", ["year=2024/a.parquet", "year=2025/a.parquet"], options=["--no-partitions"], partitions=False)
    for year in [2024, 2025]:
        key = f"year={year}/a.parquet"
        c.write("key-is-equal-column", key, {"id": ids(), "year": pa.array([year] * ROWS, pa.int32())})
        c.write("key-is-column", key, {"id": ids(), "year": pa.array(range(year, year + ROWS), pa.int32())})
    keys = ["year=2024/a.parquet", "year=2025/a.parquet"]
    c.case("key-is-equal-column", keys)
    c.case("key-is-column", keys, options=["--no-partitions"], partitions=False)


def names(c):
    for key in ["a.PARQUET", "b.parq", "c.pq", "d.snappy.parquet"]:
        c.write("endings", key, {"id": ids()})
    c.put("endings", "readme.md", b"# these are not rows")
    c.case("endings", ["a.PARQUET", "b.parq", "c.pq", "d.snappy.parquet"])
    spark = [f"part-0000{i}-2f6c5e0e-c000.snappy.parquet" for i in range(2)]
    for i, key in enumerate(spark):
        c.write("spark", key, {"id": ids(start=i)}, compression="snappy", flavor="spark")
        c.put("spark", f".{key}.crc", b"crc")
    c.put("spark", "_SUCCESS")
    c.put("spark", "_temporary/0/task/part-00009.parquet", b"half")
    c.put("spark", "_metadata", b"no rows")
    c.case("spark", spark)
    for i, key in enumerate(["000000_0", "000001_0_copy_1"]):
        c.write("hive-names", f"ds=2024-01-0{i + 1}/{key}", {"id": ids(start=i)})
    c.put("hive-names", "LICENSE", b"do what you like with it")
    c.case("hive-names", ["ds=2024-01-01/000000_0", "ds=2024-01-02/000001_0_copy_1"])
    c.write("empty-objects", "a.parquet", {"id": ids()})
    c.put("empty-objects", "b.parquet")
    c.put("empty-objects", "z.parquet")
    c.case("empty-objects", ["a.parquet"])
    keys = [f"year={year}/month=0{month}/a.parquet" for year in [2024, 2025] for month in [1, 2, 3]]
    for name in ["stars", "braces", "two-stars", "list", "list-of-months"]:
        for i, key in enumerate(keys):
            c.write(name, key, {"id": ids(start=i * ROWS)})
    c.case("stars", [key for key in keys if "month=01" in key], uri="/*/month=01/*.parquet")
    c.case("braces", [key for key in keys if "month=02" not in key], uri="/year=*/month={01,03}")
    c.case("two-stars", keys, uri="/**")
    c.case("list", [keys[4], keys[0], keys[2]], listed=True)
    c.case("list-of-months", keys[1:3], listed=True)


def of_spark(c):
    moments = [dt.datetime(2024, 1, 1) + dt.timedelta(seconds=i) for i in range(ROWS)]
    at = {"id": ids(), "at": pa.array(moments, pa.timestamp("ns"))}
    keys = [f"part-0000{i}-2f6c5e0e-c000.snappy.parquet" for i in range(2)]
    for key in keys:
        c.write("spark-96-bits", key, at, flavor="spark", use_deprecated_int96_timestamps=True, store_schema=False)
    c.case("spark-96-bits", keys)
    # Lists as Hive and old versions of Spark write them, and the marks that Databricks leaves.
    lists = pa.array([None if i % 11 == 0 else [str(j) for j in range(i % 4)] for i in range(ROWS)])
    structs = pa.array([{"a": i, "b": None if i % 5 == 0 else str(i)} for i in range(ROWS)])
    for i, day in enumerate(["2024-01-01", "2024-01-02"]):
        key = f"day={day}/hour=0{i}/part-00000-tid-77-c000.snappy.parquet"
        c.write("databricks", key, {"l": lists, "s": structs}, use_compliant_nested_type=False, store_schema=False)
        for mark in ["_started_77", "_committed_77", "_SUCCESS"]:
            c.put("databricks", f"day={day}/hour=0{i}/{mark}", b"{}")
    c.case("databricks", [f"day=2024-01-0{i + 1}/hour=0{i}/part-00000-tid-77-c000.snappy.parquet" for i in range(2)])
    for i, key in enumerate(["a.zstd.parquet", "b.gz.parquet", "c.parquet"]):
        more = {"bytes": pa.array([bytes([j % 256]) * (j % 3) for j in range(ROWS)]), "flag": pa.array([j % 3 == 0 for j in range(ROWS)])}
        version = {"data_page_version": ["1.0", "2.0", "2.0"][i], "compression": ["zstd", "gzip", "none"][i]}
        c.write("encodings", key, {"id": ids()} | more, use_dictionary=i == 0, **version)
    c.case("encodings", ["a.zstd.parquet", "b.gz.parquet", "c.parquet"])
    for i in range(3):
        c.write("grows-in-partitions", f"v={i}/a.parquet", {"id": ids()} | {f"x{j}": texts() for j in range(i)})
        c.put("grows-in-partitions", f"v={i}/.a.parquet.crc", b"crc")
    c.put("grows-in-partitions", "v=3/a.parquet")
    c.case("grows-in-partitions", [f"v={i}/a.parquet" for i in range(3)])
    clock = [dt.time(i % 24, i % 60, 1, i) for i in range(ROWS)]
    kinds = {"t32": pa.array([t.replace(microsecond=0) for t in clock], pa.time32("ms")), "t64": pa.array(clock, pa.time64("us"))}
    kinds |= {"fixed": pa.array([bytes([i % 256]) * 4 for i in range(ROWS)], pa.binary(4)), "u64": ids(pa.uint64())}
    c.write("kinds", "a.parquet", kinds)
    c.case("kinds", ["a.parquet"])


def main():
    corpus = Corpus(sys.argv[1])
    growth(corpus)
    partitions(corpus)
    names(corpus)
    of_spark(corpus)
    (corpus.root / "cases.json").write_text(json.dumps(corpus.cases, indent=1))


if __name__ == "__main__":
    main()
