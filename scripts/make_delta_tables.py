#!/usr/bin/env python3
"""Writes Delta tables, and what the package deltalake reads from each: make_delta_tables.py FOLDER

FOLDER/NAME/ holds a table. FOLDER/NAME.arrow, or FOLDER/NAME@VERSION.arrow, is the Arrow IPC stream of its rows. FOLDER/cases.json lists for
each its URI below FOLDER and further options. Tables with deletion vectors and renamed columns, which deltalake does not write, are made by
hand as the protocol says (https://github.com/delta-io/delta/blob/master/PROTOCOL.md), and their rows are known.
"""

import base64
import datetime as dt
import decimal
import json
import pathlib
import shutil
import struct
import sys
import uuid
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

ROWS = 200
UTC = dt.timezone.utc


class Tables:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        self.cases = []

    def path(self, name):
        return self.root / name

    def case(self, name, version=None, table=None, options=(), columns=None):
        """The rows of a version, as deltalake reads them or as they are known."""
        if table is None:
            read = DeltaTable(str(self.path(name)), version=version)
            table = pa.table(read.to_pyarrow_table(columns=columns))
        named = name if version is None else f"{name}@{version}"
        with pa.ipc.new_stream(str(self.root / f"{named}.arrow"), table.schema) as stream:
            stream.write_table(table)
        self.cases.append({"name": name, "uri": named, "options": list(options)})


def ids(start=0, rows=ROWS):
    return pa.array(range(start, start + rows), pa.int64())


def texts(rows=ROWS):
    return pa.array([None if i % 7 == 0 else f"text {i} ü" for i in range(rows)])


def written(t):
    path = t.path("appended")
    for i in range(4):
        write_deltalake(str(path), pa.table({"id": ids(i * ROWS), "t": texts()}), mode="append")
    for version in [0, 2, None]:
        t.case("appended", version)

    path = t.path("evolved")
    write_deltalake(str(path), pa.table({"id": ids(), "x": ids()}))
    more = pa.table({"id": ids(ROWS), "new": texts()})
    write_deltalake(str(path), more, mode="append", schema_mode="merge")
    t.case("evolved")
    t.case("evolved", 0)

    path = t.path("overwritten")
    write_deltalake(str(path), pa.table({"id": ids(), "t": texts()}))
    DeltaTable(str(path)).delete("id % 3 = 0")
    DeltaTable(str(path)).update(updates={"t": "'changed'"}, predicate="id < 20")
    write_deltalake(str(path), pa.table({"id": ids(5000)}), mode="overwrite", schema_mode="overwrite")
    for version in [0, 1, 2, None]:
        t.case("overwritten", version)

    path = t.path("compacted")
    for i in range(12):
        write_deltalake(str(path), pa.table({"id": ids(i * 10, 10)}), mode="append")
    table = DeltaTable(str(path))
    table.create_checkpoint()
    table.optimize.compact()
    write_deltalake(str(path), pa.table({"id": ids(7000, 10)}), mode="append")
    t.case("compacted")
    t.case("compacted", 11)

    path = t.path("no-rows")
    DeltaTable.create(str(path), schema=pa.schema([("id", pa.int64()), ("t", pa.string())]))
    t.case("no-rows")


def partitioned(t):
    days = [dt.date(2024, 1, 1), dt.date(2024, 2, 29), None]
    cities = ["Zürich HB", "a/b=c", "100%", None]
    columns = {
        "city": pa.array([cities[i % 4] for i in range(ROWS)]),
        "id": ids(),
        "day": pa.array([days[i % 3] for i in range(ROWS)], pa.date32()),
        "n": pa.array([[3, 3_000_000_000][i % 2] for i in range(ROWS)], pa.int64()),
        "flag": pa.array([i % 5 == 0 for i in range(ROWS)]),
        "x": texts(),
    }
    write_deltalake(str(t.path("partitioned")), pa.table(columns), partition_by=["city", "day", "n", "flag"])
    t.case("partitioned")
    moments = [dt.datetime(2024, 1, 1, 12, 30, 5, 250_000, UTC), dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)]
    columns = {
        "id": ids(),
        "at": pa.array([moments[i % 2] for i in range(ROWS)], pa.timestamp("us", "UTC")),
        "m": pa.array([[decimal.Decimal("1.25"), decimal.Decimal("-20.00")][i % 2] for i in range(ROWS)], pa.decimal128(8, 2)),
        "f": pa.array([[0.5, -1e30][i % 2] for i in range(ROWS)], pa.float64()),
    }
    write_deltalake(str(t.path("partition-types")), pa.table(columns), partition_by=["at", "m", "f"])
    t.case("partition-types")


def types(t):
    moments = [dt.datetime(2024, 1, 1, 1, 2, 3, 456_789) + dt.timedelta(hours=i) for i in range(ROWS)]
    columns = {
        "i8": pa.array([i % 100 for i in range(ROWS)], pa.int8()),
        "i16": pa.array([None if i % 9 == 0 else -i for i in range(ROWS)], pa.int16()),
        "i32": pa.array(range(ROWS), pa.int32()),
        "f32": pa.array([i / 2 for i in range(ROWS)], pa.float32()),
        "f64": pa.array([i / 3 for i in range(ROWS)], pa.float64()),
        "flag": pa.array([i % 2 == 0 for i in range(ROWS)]),
        "bytes": pa.array([bytes([i % 256]) * (i % 4) for i in range(ROWS)], pa.binary()),
        "day": pa.array([dt.date(1970, 1, 1) + dt.timedelta(days=i - 100) for i in range(ROWS)]),
        "utc": pa.array([m.replace(tzinfo=UTC) for m in moments], pa.timestamp("us", "UTC")),
        "local": pa.array(moments, pa.timestamp("us")),
        "money": pa.array([decimal.Decimal(i) / 4 for i in range(ROWS)], pa.decimal128(20, 4)),
        "list": pa.array([list(range(i % 4)) for i in range(ROWS)], pa.list_(pa.int64())),
        "struct": pa.array([{"a": i, "b": [str(i)]} for i in range(ROWS)], pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
        "map": pa.array([[(str(j), j) for j in range(i % 3)] for i in range(ROWS)], pa.map_(pa.string(), pa.int64())),
    }
    write_deltalake(str(t.path("types")), pa.table(columns))
    t.case("types")


# --- by hand ----------------------------------------------------------------------------------------------------------
def z85(data):
    """Base 85 as the log has it; bytes in multiples of four."""
    return base64.b85encode(data).decode().translate(str.maketrans(PYTHONS, ZEROMQS))


PYTHONS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
ZEROMQS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def bitmap(rows):
    """Row numbers as a portable roaring bitmap of 64 bits, with the protocol's magic number before it."""
    blocks = {}
    for row in sorted(rows):
        blocks.setdefault(row >> 16, []).append(row & 0xFFFF)
    assert max(blocks) < 1 << 16 and all(len(block) <= 4096 for block in blocks.values())
    head = b"".join(struct.pack("<HH", key, len(block) - 1) for key, block in blocks.items())
    at, offsets, data = 8 + len(head) + 4 * len(blocks), b"", b""
    for block in blocks.values():
        offsets += struct.pack("<I", at + len(data))
        data += b"".join(struct.pack("<H", low) for low in block)
    of_32_bits = struct.pack("<II", 12346, len(blocks)) + head + offsets + data
    return struct.pack("<I", 1681511377) + struct.pack("<Q", 1) + struct.pack("<I", 0) + of_32_bits


def inline(rows):
    data = bitmap(rows)
    data += b"\0" * (-len(data) % 4)
    return {"storageType": "i", "pathOrInlineDv": z85(data), "sizeInBytes": len(data), "cardinality": len(rows)}


def in_file(folder, all_rows):
    """One file for the vectors of several objects."""
    name = uuid.UUID("11111111-2222-3333-4444-555555555555")
    content, vectors = b"\x01", []
    for rows in all_rows:
        data = bitmap(rows)
        vector = {"storageType": "u", "pathOrInlineDv": z85(name.bytes), "offset": len(content)}
        vectors.append(vector | {"sizeInBytes": len(data), "cardinality": len(rows)})
        content += struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    (folder / f"deletion_vector_{name}.bin").write_bytes(content)
    return vectors


def commit(folder, version, actions):
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020}.json").write_text("\n".join(json.dumps(action) for action in actions) + "\n")


def protocol(*features):
    both = {"readerFeatures": list(features), "writerFeatures": list(features)}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | both}


def field(name, kind, **metadata):
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def mapped(name, kind, number, physical):
    return field(name, kind, **{"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical})


def metadata(fields, partitions=(), **configuration):
    schema = json.dumps({"type": "struct", "fields": fields})
    columns = {"partitionColumns": list(partitions), "configuration": configuration, "createdTime": 0}
    return {"metaData": {"id": "t", "format": {"provider": "parquet", "options": {}}, "schemaString": schema} | columns}


def add(folder, key, columns, values=None, vector=None, **options):
    """Writes an object; an action that adds it to the table."""
    path = folder / key
    path.parent.mkdir(parents=True, exist_ok=True)
    if columns is not None:
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        pq.write_table(table, path, **{"row_group_size": 50} | options)
    action = {"path": key, "partitionValues": values or {}, "size": path.stat().st_size}
    action |= {"modificationTime": 0, "dataChange": True, "stats": "{}"}
    return {"add": action | ({"deletionVector": vector} if vector else {})}


def remove(key, vector=None):
    action = {"path": key, "deletionTimestamp": 0, "dataChange": True}
    return {"remove": action | ({"deletionVector": vector} if vector else {})}


def deleted(t):
    folder = t.path("deleted-rows")
    fields = [field("id", "long"), field("t", "string")]
    a, b, c = ({"id": ids(start), "t": texts()} for start in [0, 1000, 2000])
    keys = ["a.parquet", "b.parquet", "c.parquet"]
    commit(folder, 0, [protocol("deletionVectors"), metadata(fields), add(folder, keys[0], a), add(folder, keys[1], b)])
    of_a, of_b = [0, 1, 2, 49, 50, 51, 120, 199], list(range(100, 200))
    first = in_file(folder, [of_a, of_b])
    commit(folder, 1, [remove(keys[0]), remove(keys[1]), add(folder, keys[0], None, vector=first[0]), add(folder, keys[1], None, vector=first[1])])
    more = sorted([*of_a, 77])
    commit(folder, 2, [remove(keys[0], first[0]), add(folder, keys[0], None, vector=inline(more)), add(folder, keys[2], c)])

    def left(columns, gone):
        return pa.table(columns).take([i for i in range(ROWS) if i not in gone])

    t.case("deleted-rows", 0, pa.concat_tables([pa.table(a), pa.table(b)]))
    t.case("deleted-rows", 1, pa.concat_tables([left(a, of_a), left(b, of_b)]))
    latest = pa.concat_tables([left(a, more), left(b, of_b), pa.table(c)])
    t.case("deleted-rows", None, latest)
    filtered = latest.filter(pa.array([x is not None and (x < 130 or x >= 1090) for x in latest["id"].to_pylist()]))
    folder = t.path("deleted-and-filtered")
    shutil.copytree(t.path("deleted-rows"), folder)
    t.case("deleted-and-filtered", None, filtered, options=["--where", "id < 130 or id >= 1090"])
    folder = t.path("all-deleted")
    commit(folder, 0, [protocol("deletionVectors"), metadata(fields), add(folder, "a.parquet", a, vector=inline(range(ROWS)))])
    t.case("all-deleted", None, pa.table(a).slice(0, 0))


def renamed(t):
    folder = t.path("renamed")
    # `a` became `b`, then another `a` was added, and `gone` dropped; the partition has another name in the log, too.
    old = [mapped("a", "long", 1, "a"), mapped("gone", "string", 2, "gone"), mapped("city", "string", 3, "col-city")]
    new = [mapped("b", "long", 1, "a"), mapped("a", "string", 4, "col-4"), mapped("city", "string", 3, "col-city")]
    mode = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "4"}
    first = add(folder, "x/1.parquet", {"a": ids(), "gone": texts()}, {"col-city": "Bern"}, inline([5, 6]))
    commit(folder, 0, [protocol("columnMapping", "deletionVectors"), metadata(old, ["city"], **mode), first])
    second = add(folder, "y/2.parquet", {"a": ids(1000), "col-4": texts()}, {"col-city": None})
    commit(folder, 1, [metadata(new, ["city"], **mode), second])
    kept = [i for i in range(ROWS) if i not in (5, 6)]
    before = {"a": ids().take(kept), "gone": texts().take(kept), "city": pa.array(["Bern"] * len(kept))}
    t.case("renamed", 0, pa.table(before))
    schema = pa.schema([("b", pa.int64()), ("a", pa.string()), ("city", pa.string())])
    of_first = pa.table({"b": before["a"], "a": pa.nulls(len(kept), pa.string()), "city": before["city"]}, schema=schema)
    of_second = pa.table({"b": ids(1000), "a": texts(), "city": pa.nulls(ROWS, pa.string())}, schema=schema)
    t.case("renamed", None, pa.concat_tables([of_first, of_second]))


def by_ids(t):
    """Columns found by ids, which writers give beside the names; renamed, dropped and added."""
    folder = t.path("by-ids")

    def table(**columns):
        fields = [pa.field(name.replace("_", "-"), c.type, metadata={"PARQUET:field_id": str(n)}) for name, (n, c) in columns.items()]
        return pa.table([c for _, c in columns.values()], schema=pa.schema(fields))

    mode = {"delta.columnMapping.mode": "id", "delta.columnMapping.maxColumnId": "4"}
    old = [mapped("x", "long", 1, "col-1"), mapped("gone", "string", 2, "col-2"), mapped("city", "string", 3, "col-3")]
    new = [mapped("renamed", "long", 1, "col-1"), mapped("x", "string", 4, "col-4"), mapped("city", "string", 3, "col-3")]
    first = add(folder, "1.parquet", table(col_1=(1, ids()), col_2=(2, texts())), {"col-3": "Bern"})
    commit(folder, 0, [protocol("columnMapping"), metadata(old, ["city"], **mode), first])
    second = add(folder, "2.parquet", table(col_4=(4, texts()), col_1=(1, ids(1000))), {"col-3": None})
    commit(folder, 1, [metadata(new, ["city"], **mode), second])
    bern = pa.array(["Bern"] * ROWS)
    t.case("by-ids", 0, pa.table({"x": ids(), "gone": texts(), "city": bern}))
    schema = pa.schema([("renamed", pa.int64()), ("x", pa.string()), ("city", pa.string())])
    of_first = pa.table({"renamed": ids(), "x": pa.nulls(ROWS, pa.string()), "city": bern}, schema=schema)
    of_second = pa.table({"renamed": ids(1000), "x": texts(), "city": pa.nulls(ROWS, pa.string())}, schema=schema)
    t.case("by-ids", None, pa.concat_tables([of_first, of_second]))
    # An object that came from elsewhere: the id under another name.
    folder = t.path("bad-id-name")
    named = [mapped("x", "long", 1, "col-1")]
    commit(folder, 0, [protocol("columnMapping"), metadata(named, **mode), add(folder, "a.parquet", table(other=(1, ids())))])


def of_spark(t):
    folder = t.path("spark-timestamps")
    moments = [dt.datetime(2024, 1, 1, tzinfo=UTC) + dt.timedelta(seconds=i) for i in range(ROWS)]
    # Nanoseconds in 64 bits do not reach these.
    moments[10] = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    moments[20] = dt.datetime(1, 1, 1, tzinfo=UTC)
    moments[30] = None
    at = pa.array(moments, pa.timestamp("us", "UTC"))
    lists = [None if i % 7 == 0 else moments[i : i + i % 3] for i in range(ROWS)]
    ats = pa.array(lists, pa.list_(pa.timestamp("us", "UTC")))
    of_lists = {"type": "array", "elementType": "timestamp", "containsNull": True}
    fields = [field("id", "integer"), field("at", "timestamp"), field("ats", of_lists)]
    key = "part-00000-2f6c5e0e-c000.snappy.parquet"
    columns = {"id": pa.array(range(ROWS), pa.int32()), "at": at, "ats": ats}
    first = add(folder, key, columns, use_deprecated_int96_timestamps=True, store_schema=False)
    commit(folder, 0, [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, metadata(fields), first])
    (folder / "_delta_log" / f".{0:020}.json.crc").write_bytes(b"crc")
    t.case("spark-timestamps", None, pa.table(columns))
    folder = t.path("widened")
    narrow, wide = ({"x": pa.array(range(ROWS), kind)} for kind in [pa.int32(), pa.int64()])
    changes = [{"fromType": "integer", "toType": "long"}]
    log = [protocol("typeWidening"), metadata([field("x", "long", **{"delta.typeChanges": changes})], **{"delta.enableTypeWidening": "true"})]
    commit(folder, 0, [*log, add(folder, "a.parquet", narrow), add(folder, "b.parquet", wide)])
    t.case("widened", None, pa.table({"x": pa.concat_arrays([wide["x"], wide["x"]])}))


def bad(t):
    """Tables that cannot be read; their names begin so."""
    x = {"x": ids()}
    fields = [field("x", "long")]

    def table(name, first, *others, key="a.parquet"):
        folder = t.path(f"bad-{name}")
        commit(folder, 0, [first, *(others or [metadata(fields)]), add(folder, key, x)])
        return folder

    table("feature", protocol("timeMachine"))
    by_id = {"delta.columnMapping.mode": "id", "delta.columnMapping.maxColumnId": "1"}
    table("ids", protocol("columnMapping"), metadata([mapped("x", "long", 1, "x")], **by_id))
    (table("gone", protocol()) / "a.parquet").unlink()
    folder = table("elsewhere", protocol())
    log = folder / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace("a.parquet", "s3://elsewhere/a.parquet"))
    folder = table("json", protocol())
    (folder / "_delta_log" / f"{1:020}.json").write_text("{not json")
    table("type", protocol(), metadata([field("x", "string"), field("id", "long")]))
    folder = t.path("bad-vector")
    vector = inline([1, 2]) | {"cardinality": 3}
    commit(folder, 0, [protocol("deletionVectors"), metadata(fields), add(folder, "a.parquet", x, vector=vector)])


# --- features of tables ---------------------------------------------------------------------------------------------
def commit_info(**more):
    return {"commitInfo": {"timestamp": 1700000000000, "operation": "WRITE"} | more}


def domain(name, configuration):
    return {"domainMetadata": {"domain": name, "configuration": json.dumps(configuration), "removed": False}}


def plain_table(t, feature, *actions, fields=None, columns=None, known=None, more=(), properties=None, **of_add):
    """A table that has a feature and reads as any other: two objects, one for each commit."""
    folder = t.path(f"feature-{feature}")
    fields = fields or [field("id", "long"), field("t", "string")]
    columns = columns or (lambda start: {"id": ids(start), "t": texts()})
    first, second = (add(folder, f"{key}.parquet", columns(start)) for key, start in [("a", 0), ("b", 1000)])
    for action in [first, second]:
        action["add"] |= of_add
    writers = [feature, *more]
    readers = [name for name in writers if name in READERS]
    log = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": readers, "writerFeatures": writers}
    head = [{"protocol": log}, metadata(fields, **(properties or {}))]
    commit(folder, 0, [commit_info(inCommitTimestamp=1), *head, *actions, first])
    commit(folder, 1, [commit_info(inCommitTimestamp=2), second])
    known = known or (lambda start: {"id": ids(start), "t": texts()})
    t.case(f"feature-{feature}", None, pa.concat_tables([pa.table(known(0)), pa.table(known(1000))]))
    return folder


READERS = ["columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint"]
READERS += ["vacuumProtocolCheck", "variantType", "variantType-preview", "variantShredding-preview"]


def writers_only(t):
    """What only writers must know."""
    plain_table(t, "appendOnly", properties={"delta.appendOnly": "true"})
    not_null = json.dumps({"expression": {"expression": "id >= 0"}})
    fields = [field("id", "long", **{"delta.invariants": not_null}), field("t", "string")]
    plain_table(t, "invariants", fields=fields)
    plain_table(t, "checkConstraints", properties={"delta.constraints.positive": "id >= 0"})
    folder = plain_table(t, "changeDataFeed", properties={"delta.enableChangeDataFeed": "true"})
    changes = {"id": ids(500_000), "t": texts(), "_change_type": pa.array(["insert"] * ROWS)}
    cdc = add(folder, "_change_data/cdc-0.parquet", changes)["add"]
    commit(folder, 2, [{"cdc": {key: cdc[key] for key in ["path", "partitionValues", "size", "dataChange"]} | {"dataChange": False}}])
    generated = field("t", "string", **{"delta.generationExpression": "cast(id as string)"})
    plain_table(t, "generatedColumns", fields=[field("id", "long"), generated])
    identity = {"delta.identity.start": 0, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": True}
    plain_table(t, "identityColumns", fields=[field("id", "long", **identity), field("t", "string")])
    default = field("t", "string", CURRENT_DEFAULT="'x'")
    plain_table(t, "allowColumnDefaults", fields=[field("id", "long"), default])
    plain_table(t, "inCommitTimestamp", properties={"delta.enableInCommitTimestamps": "true"})
    plain_table(t, "domainMetadata", domain("mine", {"a": 1}))
    clustered = domain("delta.clustering", {"clusteringColumns": [["id"]]})
    plain_table(t, "clustering", clustered, more=["domainMetadata"], clusteringProvider="liquid")
    tracking = {"delta.enableRowTracking": "true", "delta.rowTracking.materializedRowIdColumnName": "_row-id-col-1"}
    tracking["delta.rowTracking.materializedRowCommitVersionColumnName"] = "_row-commit-version-col-1"

    def rows(start):
        return {"id": ids(start), "t": texts(), "_row-id-col-1": ids(start), "_row-commit-version-col-1": ids()}

    mark = domain("delta.rowTracking", {"rowIdHighWaterMark": 2 * ROWS})
    plain_table(t, "rowTracking", mark, columns=rows, more=["domainMetadata"], properties=tracking, baseRowId=0, defaultRowCommitVersion=0)
    mode = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2", "delta.enableIcebergCompatV2": "true"}
    fields = [mapped("id", "long", 1, "col-1"), mapped("t", "string", 2, "col-2")]

    def physical(start):
        return {"col-1": ids(start), "col-2": texts()}

    plain_table(t, "icebergCompatV2", fields=fields, columns=physical, more=["columnMapping"], properties=mode)
    plain_table(t, "futureWriterFeature")
    # Objects that have the partition's column, too. The log says what it is.
    folder = t.path("feature-materializePartitionColumns")
    both = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": ["materializePartitionColumns"]}
    columns = {"id": ids(), "city": pa.array(["elsewhere"] * ROWS)}
    first = add(folder, "city=Bern/a.parquet", columns, {"city": "Bern"})
    commit(folder, 0, [{"protocol": both}, metadata([field("id", "long"), field("city", "string")], ["city"]), first])
    t.case("feature-materializePartitionColumns", None, pa.table({"id": ids(), "city": pa.array(["Bern"] * ROWS)}))


def readers_too(t):
    """What readers must know."""
    plain_table(t, "vacuumProtocolCheck")
    char = field("t", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(20)")
    plain_table(t, "deletionVectors", fields=[field("id", "long"), char], properties={"delta.enableDeletionVectors": "true"})
    moments = [dt.datetime(2024, 1, 1, 1, 2, 3, 456_789) + dt.timedelta(hours=i) for i in range(ROWS)]

    def local(start):
        return {"id": ids(start), "at": pa.array(moments, pa.timestamp("us"))}

    fields = [field("id", "long"), field("at", "timestamp_ntz")]
    plain_table(t, "timestampNtz", fields=fields, columns=local, known=local)
    folder = t.path("feature-timestampNtz-partition")
    first = add(folder, "a.parquet", {"id": ids()}, {"at": "2024-02-29 01:02:03.456789"})
    commit(folder, 0, [protocol("timestampNtz"), metadata(fields, ["at"]), first])
    at = pa.array([dt.datetime(2024, 2, 29, 1, 2, 3, 456_789)] * ROWS, pa.timestamp("us"))
    t.case("feature-timestampNtz-partition", None, pa.table({"id": ids(), "at": at}))


def odd_types(t):
    """Types that need no feature, though few writers have them."""
    folder = t.path("odd-types")
    fields = [field("id", "long"), field("nothing", "void"), field("took", "interval day to second")]
    columns = {"id": ids(), "took": pa.array([i * 1_000_000 for i in range(ROWS)], pa.int64())}
    commit(folder, 0, [protocol(), metadata(fields), add(folder, "a.parquet", columns)])
    known = {"id": columns["id"], "nothing": pa.nulls(ROWS), "took": columns["took"]}
    t.case("odd-types", None, pa.table(known))


def widened(t):
    """Every change of a type that the protocol allows."""
    days = [dt.date(1970, 1, 1) + dt.timedelta(days=i * 37 - 900) for i in range(ROWS)]
    numbers = [i - 100 for i in range(ROWS)]
    # (name, type of before in the log, now, of before in the object, now)
    changes = [
        ("byte_long", "byte", "long", pa.int8(), pa.int64()),
        ("short_int", "short", "integer", pa.int16(), pa.int32()),
        ("float_double", "float", "double", pa.float32(), pa.float64()),
        ("int_double", "integer", "double", pa.int32(), pa.float64()),
        ("int_decimal", "integer", "decimal(12,2)", pa.int32(), pa.decimal128(12, 2)),
        ("long_decimal", "long", "decimal(20,0)", pa.int64(), pa.decimal128(20, 0)),
        ("decimal_decimal", "decimal(6,2)", "decimal(12,4)", pa.decimal128(6, 2), pa.decimal128(12, 4)),
        ("date_ntz", "date", "timestamp_ntz", pa.date32(), pa.timestamp("us")),
    ]

    def column(name, kind):
        if name == "date_ntz":
            return pa.array(days, pa.date32()).cast(kind)
        if pa.types.is_decimal(kind):
            return pa.array([None if n % 9 == 0 else decimal.Decimal(n) for n in numbers], kind)
        return pa.array([None if n % 9 == 0 else n for n in numbers], pa.int64()).cast(kind)

    def change(old, new):
        return {"delta.typeChanges": [{"fromType": old, "toType": new}]}

    fields = [field(name, new, **change(old, new)) for name, old, new, _, _ in changes]
    narrow = {name: column(name, kind) for name, _, _, kind, _ in changes}
    wide = {name: column(name, kind) for name, _, _, _, kind in changes}
    for feature in ["typeWidening", "typeWidening-preview"]:
        folder = t.path(f"feature-{feature}")
        log = [protocol(feature, "timestampNtz"), metadata(fields, **{"delta.enableTypeWidening": "true"})]
        commit(folder, 0, [*log, add(folder, "a.parquet", narrow), add(folder, "b.parquet", wide)])
        t.case(f"feature-{feature}", None, pa.concat_tables([pa.table(wide), pa.table(wide)]))
    of_date = pa.table(wide)
    chosen = [i for i, day in enumerate(days) if day >= dt.date(1975, 1, 1)]
    both = pa.concat_tables([of_date.take(chosen), of_date.take(chosen)])
    folder = t.path("feature-typeWidening-filtered")
    shutil.copytree(t.path("feature-typeWidening"), folder)
    t.case("feature-typeWidening-filtered", None, both, options=["--where", "date_ntz >= '1975-01-01'"])


def checkpoints(t):
    """Checkpoints of both versions, in one file, in parts and with sidecars; the commits before them are gone."""
    fields = [field("id", "long"), field("t", "string")]
    adds_type = pa.struct(
        [
            ("path", pa.string()),
            ("partitionValues", pa.map_(pa.string(), pa.string())),
            ("size", pa.int64()),
            ("modificationTime", pa.int64()),
            ("dataChange", pa.bool_()),
        ]
    )
    known = pa.concat_tables([pa.table({"id": ids(start), "t": texts()}) for start in [0, 1000, 2000]])

    def actions(adds, *others):
        """Rows of a checkpoint in Parquet."""
        rows = [{"add": {**a["add"], "partitionValues": []}} for a in adds]
        for other in others:
            rows.append(other)
        names = ["protocol", "metaData", "add", "checkpointMetadata", "sidecar"]
        kinds = {
            "protocol": pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32()), ("readerFeatures", pa.list_(pa.string())), ("writerFeatures", pa.list_(pa.string()))]),
            "metaData": pa.struct([("id", pa.string()), ("format", pa.struct([("provider", pa.string()), ("options", pa.map_(pa.string(), pa.string()))])), ("schemaString", pa.string()), ("partitionColumns", pa.list_(pa.string())), ("configuration", pa.map_(pa.string(), pa.string())), ("createdTime", pa.int64())]),
            "add": adds_type,
            "checkpointMetadata": pa.struct([("version", pa.int64())]),
            "sidecar": pa.struct([("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64())]),
        }
        return pa.table({name: pa.array([row.get(name) for row in rows], kinds[name]) for name in names})

    def make(name, features, write):
        folder = t.path(f"checkpoint-{name}")
        first, second, third = (add(folder, f"{key}.parquet", {"id": ids(start), "t": texts()}) for key, start in [("a", 0), ("b", 1000), ("c", 2000)])
        log = folder / "_delta_log"
        log.mkdir()
        meta = metadata(fields)
        in_parquet = {"metaData": meta["metaData"] | {"format": {"provider": "parquet", "options": []}, "configuration": []}}
        write(log, protocol(*features), meta, in_parquet, [first, second])
        commit(folder, 3, [third])
        t.case(f"checkpoint-{name}", None, known)

    def whole(log, of, meta, in_parquet, adds):
        pq.write_table(actions(adds, of, in_parquet), log / f"{2:020}.checkpoint.parquet")
        (log / "_last_checkpoint").write_text(json.dumps({"version": 2, "size": 4}))

    def in_parts(log, of, meta, in_parquet, adds):
        pq.write_table(actions(adds[:1], of, in_parquet), log / f"{2:020}.checkpoint.{1:010}.{2:010}.parquet")
        pq.write_table(actions(adds[1:]), log / f"{2:020}.checkpoint.{2:010}.{2:010}.parquet")
        (log / "_last_checkpoint").write_text(json.dumps({"version": 2, "size": 4, "parts": 2}))

    def sidecars(log, adds):
        (log / "_sidecars").mkdir()
        found = []
        for i, one in enumerate(adds):
            name = f"{uuid.UUID(int=i + 1)}.parquet"
            pq.write_table(actions([one]).select(["add"]), log / "_sidecars" / name)
            size = (log / "_sidecars" / name).stat().st_size
            found.append({"sidecar": {"path": name, "sizeInBytes": size, "modificationTime": 0}})
        return found

    def v2_json(log, of, meta, in_parquet, adds):
        rows = [{"checkpointMetadata": {"version": 2}}, of, meta, *sidecars(log, adds)]
        (log / f"{2:020}.checkpoint.{uuid.UUID(int=9)}.json").write_text("\n".join(json.dumps(row) for row in rows) + "\n")

    def v2_parquet(log, of, meta, in_parquet, adds):
        rows = [{"checkpointMetadata": {"version": 2}}, of, in_parquet, *sidecars(log, adds)]
        pq.write_table(actions([], *rows), log / f"{2:020}.checkpoint.{uuid.UUID(int=9)}.parquet")

    def v2_without_sidecars(log, of, meta, in_parquet, adds):
        rows = [{"checkpointMetadata": {"version": 2}}, of, in_parquet]
        pq.write_table(actions(adds, *rows), log / f"{2:020}.checkpoint.{uuid.UUID(int=9)}.parquet")

    make("whole", [], whole)
    make("in-parts", [], in_parts)
    for name, write in [("v2-json", v2_json), ("v2-parquet", v2_parquet), ("v2-without-sidecars", v2_without_sidecars)]:
        make(name, ["v2Checkpoint"], write)
    # Commits put together, beside those that they hold.
    folder = t.path("checkpoint-compacted")
    three = [add(folder, f"{key}.parquet", {"id": ids(start), "t": texts()}) for key, start in [("a", 0), ("b", 1000), ("c", 2000)]]
    head = [protocol(), metadata(fields)]
    for version, one in enumerate(three):
        commit(folder, version, [*(head if version == 0 else []), one])
    compacted = "\n".join(json.dumps(action) for action in three[1:]) + "\n"
    (folder / "_delta_log" / f"{1:020}.{2:020}.compacted.json").write_text(compacted)
    t.case("checkpoint-compacted", None, known)


def clones(t):
    """Tables whose objects lie in other tables, by full URIs: shallow clones. They are read from the bucket `forebay`."""
    a, b = {"id": ids(), "t": texts()}, {"id": ids(1000), "t": texts()}
    fields = [field("id", "long"), field("t", "string")]
    source = t.path("cloned")
    first = add(source, "x=1 2/a b.parquet", a)
    vector = in_file(source, [[0, 1, 150]])[0]
    commit(source, 0, [protocol("deletionVectors"), metadata(fields), first])
    name = "deletion_vector_11111111-2222-3333-4444-555555555555.bin"
    left = [i for i in range(ROWS) if i not in (0, 1, 150)]
    for scheme in ["s3", "s3a"]:
        folder = t.path(f"clone-{scheme}")
        away = {"add": first["add"] | {"path": f"{scheme}://forebay/cloned/x=1%202/a%20b.parquet"}}
        there = vector | {"storageType": "p", "pathOrInlineDv": f"{scheme}://forebay/cloned/{name}"}
        away["add"]["deletionVector"] = there
        commit(folder, 0, [protocol("deletionVectors"), metadata(fields), away])
        commit(folder, 1, [add(folder, "own.parquet", b)])
        t.case(f"clone-{scheme}", None, pa.concat_tables([pa.table(a).take(left), pa.table(b)]))
        t.case(f"clone-{scheme}", 0, pa.table(a).take(left))


def refused(t):
    """Tables with a feature that cannot be read; each named as the feature."""
    x = {"x": ids()}

    def table(name, of, meta, columns=x, more=()):
        folder = t.path(f"refused-{name}")
        commit(folder, 0, [commit_info(inCommitTimestamp=1), of, meta, add(folder, "a.parquet", columns), *more])

    fields = [field("x", "long")]
    times = {"delta.enableInCommitTimestamps": "true"}
    for name in ["catalogManaged", "catalogOwned-preview"]:
        by_catalog = protocol(name)
        by_catalog["protocol"]["writerFeatures"].append("inCommitTimestamp")
        table(name, by_catalog, metadata(fields, **times))
    table("geospatial", protocol("geospatial"), metadata([*fields, field("g", "geometry(OGC:CRS84)")]))
    table("adaptiveMetadata-preview", protocol("adaptiveMetadata-preview"), metadata(fields))
    of_future = protocol()
    of_future["protocol"]["minReaderVersion"] = 4
    table("reader-version", of_future, metadata(fields))
    table("type", protocol(), metadata([*fields, field("i", "quaternion")]))
    nested = {"type": "struct", "fields": [mapped("inner", "long", 3, "col-3")]}
    mode = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "3"}
    columns = {"col-1": ids(), "col-2": pa.array([{"col-3": i} for i in range(ROWS)])}
    named = [mapped("x", "long", 1, "col-1"), mapped("s", nested, 2, "col-2")]
    table("nested-mapping", protocol("columnMapping"), metadata(named, **mode), columns)
    variant = pa.array([{"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}] * ROWS)
    for name in ["variantType", "variantType-preview"]:
        table(name, protocol(name), metadata([*fields, field("v", "variant")]), x | {"v": variant})
    shredded = pa.array([{"metadata": b"\x01\x00\x00", "value": None, "typed_value": i} for i in range(ROWS)])
    names = ["variantType", "variantShredding-preview"]
    table("variantShredding-preview", protocol(*names), metadata([*fields, field("v", "variant")]), x | {"v": shredded})


def main():
    tables = Tables(sys.argv[1])
    for make in [written, partitioned, types, deleted, renamed, by_ids, of_spark, bad]:
        make(tables)
    for make in [writers_only, readers_too, odd_types, widened, checkpoints, clones, refused]:
        make(tables)
    (tables.root / "cases.json").write_text(json.dumps(tables.cases, indent=1))


if __name__ == "__main__":
    main()
