#!/usr/bin/env python3
"""Writes the Parquet files of the data conformance tests: make_fixtures.py FOLDER

FOLDER/good/NAME/*.parquet are datasets that Forebay must read as pyarrow does, value by value; together they hold every
type, codec, encoding and layout that Parquet files in the wild have. FOLDER/bad/NAME/* must give a clear error. The
files are the same at every run.
"""

import datetime as dt
import decimal
import pathlib
import random
import shutil
import struct
import sys

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 1000
random_ = random.Random(20240607)


def column(make, rows=ROWS, nulls=0.2):
    """`rows` values of `make(i)`, a share of them null; the first and the last are not."""
    inner = range(1, rows - 1)
    return [None if i in inner and random_.random() < nulls else make(i) for i in range(rows)]


def integers(bits, signed):
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    edge = [low, high, 0, 1]
    return lambda i: edge[i] if i < len(edge) else random_.randint(low, high)


def floats(pack, scale):
    edge = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0]

    def make(i):
        value = edge[i] if i < len(edge) else random_.uniform(-scale, scale)
        return struct.unpack(pack, struct.pack(pack, value))[0]  # Rounded to what the type can hold.

    return make


def text(i):
    edge = ["", "a", "ü", "日本語", "🦀" * 3, "line\nbreak", '"quote"', "\x00", "x" * 3000]
    return edge[i] if i < len(edge) else "".join(random_.choices("abcdefgh äöü€🦀", k=random_.randint(0, 30)))


def raw(i):
    return random_.randbytes(random_.randint(0, 40)) if i else b""


def short(make, low=0, high=5):
    return lambda i: [make(random_.randint(10, 10**6)) for _ in range(random_.randint(low, high))]


def maybe(make):
    return lambda i: None if random_.random() < 0.3 else make(i)


def struct_(i):
    inner = maybe(lambda j: {"x": random_.random(), "tags": maybe(short(text))(j)})
    return {"id": maybe(lambda j: j)(i), "name": maybe(text)(i), "inner": inner(i)}


STRUCT = pa.struct(
    [("id", pa.int64()), ("name", pa.string()), ("inner", pa.struct([("x", pa.float64()), ("tags", pa.list_(pa.string()))]))]
)


def table(columns, rows=ROWS, nulls=0.2):
    """A table of name -> (type, make), and for each a column without nulls that is declared so."""
    fields, arrays = [], []
    for name, (kind, make) in columns.items():
        fields.append(pa.field(name, kind))
        arrays.append(pa.array(column(make, rows, nulls), kind))
        fields.append(pa.field(f"{name}_required", kind, nullable=False))
        arrays.append(pa.array(column(make, rows, 0), kind))
    return pa.table(arrays, schema=pa.schema(fields))


def primitives():
    columns = {f"int{bits}": (getattr(pa, f"int{bits}")(), integers(bits, True)) for bits in (8, 16, 32, 64)}
    columns |= {f"uint{bits}": (getattr(pa, f"uint{bits}")(), integers(bits, False)) for bits in (8, 16, 32, 64)}
    columns |= {
        "float16": (pa.float16(), floats("<e", 6e4)),
        "float32": (pa.float32(), floats("<f", 1e30)),
        "float64": (pa.float64(), floats("<d", 1e300)),
        "bool": (pa.bool_(), lambda i: random_.random() < 0.5),
    }
    return table(columns)


def temporal():
    day = lambda i: dt.date(1900, 1, 1) + dt.timedelta(days=random_.randint(0, 80_000))
    stamp = lambda factor: lambda i: random_.randint(-(10**9), 4 * 10**9) * factor + random_.randrange(factor)
    columns = {
        "date32": (pa.date32(), day),
        "date64": (pa.date64(), day),
        "time32_s": (pa.time32("s"), lambda i: random_.randrange(86_400)),
        "time32_ms": (pa.time32("ms"), lambda i: random_.randrange(86_400_000)),
        "time64_us": (pa.time64("us"), lambda i: random_.randrange(86_400_000_000)),
        "time64_ns": (pa.time64("ns"), lambda i: random_.randrange(86_400_000_000_000)),
    }
    for unit, factor in {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}.items():
        columns[f"timestamp_{unit}"] = (pa.timestamp(unit), stamp(factor))
        columns[f"timestamp_{unit}_zone"] = (pa.timestamp(unit, tz="Europe/Berlin"), stamp(factor))
        columns[f"duration_{unit}"] = (pa.duration(unit), stamp(factor))
    return table(columns)


def decimals():
    def make(precision, scale):
        high = 10**precision - 1
        context = decimal.Context(prec=80)  # The default context would round 76 digits to 28.
        return lambda i: decimal.Decimal([high, -high, 0][i] if i < 3 else random_.randint(-high, high)).scaleb(-scale, context)

    shapes = [(5, 2), (9, 0), (18, 6), (19, 4), (38, 10)]
    columns = {f"decimal128_{p}_{s}": (pa.decimal128(p, s), make(p, s)) for p, s in shapes}
    columns |= {f"decimal256_{p}_{s}": (pa.decimal256(p, s), make(p, s)) for p, s in [(12, 3), (40, 10), (76, 38)]}
    return table(columns)


def strings():
    return table(
        {
            "string": (pa.string(), text),
            "large_string": (pa.large_string(), text),
            "binary": (pa.binary(), raw),
            "large_binary": (pa.large_binary(), raw),
            "fixed_binary": (pa.binary(7), lambda i: random_.randbytes(7)),
            "uuid_like": (pa.binary(16), lambda i: random_.randbytes(16)),
        }
    )


def fixed_lists():
    exactly = lambda n, make: short(make, n, n)
    return table(
        {
            "u8": (pa.list_(pa.uint8(), 16), exactly(16, integers(8, False))),
            "f32": (pa.list_(pa.float32(), 3), exactly(3, floats("<f", 1e6))),
            "f16": (pa.list_(pa.float16(), 4), exactly(4, floats("<e", 1e3))),
            "i64_nullable": (pa.list_(pa.int64(), 2), exactly(2, maybe(integers(64, True)))),
            "bool": (pa.list_(pa.bool_(), 9), exactly(9, lambda i: random_.random() < 0.5)),
            "text": (pa.list_(pa.string(), 2), exactly(2, maybe(text))),
            "nested": (pa.list_(pa.list_(pa.int16(), 2), 3), exactly(3, maybe(exactly(2, maybe(integers(16, True)))))),
        }
    )


def images():
    """Required lists of required bytes, as image datasets have them, in row groups that are no multiple of 8."""
    item = pa.field("element", pa.uint8(), nullable=False)
    fields = [pa.field("image", pa.list_(item, 784), nullable=False), pa.field("label", pa.int64(), nullable=False)]
    data = pa.array(list(random_.randbytes(784 * ROWS)), pa.uint8())
    arrays = [pa.FixedSizeListArray.from_arrays(data, type=fields[0].type), pa.array([i % 10 for i in range(ROWS)])]
    return pa.table(arrays, schema=pa.schema(fields))


def nested():
    return table(
        {
            "list": (pa.list_(pa.int32()), short(maybe(integers(32, True)))),
            "large_list": (pa.large_list(pa.string()), short(maybe(text))),
            "list_of_lists": (pa.list_(pa.list_(pa.float64())), short(maybe(short(floats("<d", 1e9))))),
            "struct": (STRUCT, struct_),
            "list_of_structs": (pa.list_(STRUCT), short(maybe(struct_), 0, 3)),
            "map": (pa.map_(pa.string(), pa.int64()), lambda i: [(f"k{j}", maybe(lambda k: k)(j)) for j in range(i % 4)]),
            "map_of_structs": (pa.map_(pa.int32(), STRUCT), lambda i: [(j, maybe(struct_)(j)) for j in range(i % 3)]),
        }
    )


def dictionaries():
    words = ["red", "green", "blue", "", "ultraviolet", "日本"]
    return pa.table(
        {
            "words": pa.array(column(lambda i: words[i % 6])).dictionary_encode(),
            "words_i8": pa.array(column(lambda i: words[i % 5])).cast(pa.dictionary(pa.int8(), pa.string())),
            "ordered": pa.array(column(lambda i: words[i % 3])).cast(pa.dictionary(pa.int16(), pa.string(), ordered=True)),
            "bytes": pa.array(column(lambda i: words[i % 4].encode())).dictionary_encode(),
            "numbers": pa.array(column(lambda i: i % 7)).dictionary_encode(),
            "repeated": pa.array(column(lambda i: i // 100)),
        }
    )


def nothing():
    """Columns of nulls, of every kind of layout."""
    kinds = [pa.null(), pa.int32(), pa.bool_(), pa.string(), pa.binary(3), pa.list_(pa.int8()), pa.list_(pa.int8(), 4)]
    kinds += [STRUCT, pa.decimal128(20, 2), pa.map_(pa.string(), pa.int8()), pa.timestamp("us", tz="UTC")]
    return pa.table({f"{i}_{kind.id}": pa.nulls(ROWS, kind) for i, kind in enumerate(kinds)})


def names():
    odd = ["", "a.b", "a b", "ünï", "日本", "SELECT", "a/b", "x" * 300, "label", "Label"]
    return pa.table([pa.array(range(i, ROWS + i)) for i in range(len(odd))], names=odd)


def mixed(rows=ROWS):
    """A bit of everything, for the datasets that are about layout and not about types."""
    return table(
        {
            "id": (pa.int64(), lambda i: i),
            "text": (pa.string(), text),
            "score": (pa.float32(), floats("<f", 1.0)),
            "flag": (pa.bool_(), lambda i: i % 3 == 0),
            "pixels": (pa.list_(pa.uint8(), 8), lambda i: list(random_.randbytes(8))),
            "tags": (pa.list_(pa.string()), short(maybe(text), 0, 3)),
        },
        rows,
    )


def write(folder, name, data, part=0, **options):
    path = folder / name / f"part-{part:05}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(data, path, **{"row_group_size": 300, **options})
    return path


def write_types(good):
    for make in (primitives, temporal, decimals, strings, fixed_lists, images, nested, dictionaries, nothing, names):
        write(good, make.__name__.replace("_", "-"), make())
    # Without Arrow's own schema in the footer, the types follow from Parquet's alone.
    for make in (primitives, temporal, strings, nested):
        write(good, f"{make.__name__}-no-arrow-schema", make(), store_schema=False)
    stamps = pa.table({"at": pa.array(column(lambda i: random_.randint(0, 2 * 10**18)), pa.timestamp("ns"))})
    write(good, "int96-timestamps", stamps, use_deprecated_int96_timestamps=True)
    write(good, "version-1-0", mixed(), version="1.0")


def write_layouts(good):
    data = mixed()
    for codec in ("none", "snappy", "zstd", "lz4", "gzip", "brotli"):
        write(good, f"codec-{codec}", data, compression=codec)
    write(good, "codec-per-column", data, compression={"id": "zstd", "text": "gzip", "score": "none"})
    write(good, "page-v2", data, data_page_version="2.0")
    write(good, "page-v2-uncompressed", data, data_page_version="2.0", compression="none")
    write(good, "page-index", data, write_page_index=True, data_page_size=512)
    write(good, "page-checksums", data, write_page_checksum=True)
    write(good, "tiny-pages", data, data_page_size=64, write_batch_size=8)
    write(good, "no-dictionary", data, use_dictionary=False)
    write(good, "no-statistics", data, write_statistics=False)
    numbers = data.select(["id", "score", "text"])
    encodings = {"id": "DELTA_BINARY_PACKED", "score": "BYTE_STREAM_SPLIT", "text": "DELTA_BYTE_ARRAY"}
    write(good, "encodings", numbers, use_dictionary=False, column_encoding=encodings)
    write(good, "encoding-delta-length", data.select(["text"]), use_dictionary=False, column_encoding="DELTA_LENGTH_BYTE_ARRAY")
    write(good, "row-group-1", data.slice(0, 200), row_group_size=1)
    write(good, "row-group-7", data, row_group_size=7)
    write(good, "row-group-huge", mixed(50_000), row_group_size=1 << 30)
    write(good, "one-row", data.slice(0, 1))
    wide = pa.table({f"c{i:03}": pa.array([(i * j) % 251 for j in range(100)], pa.int32()) for i in range(300)})
    write(good, "wide", wide)
    for part, (offset, length) in enumerate([(0, 130), (130, 1), (131, 0), (131, 500), (631, 369)]):
        write(good, "many-files", data.slice(offset, length), part, row_group_size=100 + part)
    write_empty(good, data)


def write_empty(good, data):
    write(good, "zero-rows", data.slice(0, 0))
    path = good / "zero-row-groups" / "part-00000.parquet"
    path.parent.mkdir(parents=True)
    with pq.ParquetWriter(path, data.schema) as writer:
        for length in (0, 10, 0, 0, 5, 0):
            writer.write_table(data.slice(0, length))
    path = good / "no-row-groups" / "part-00000.parquet"
    path.parent.mkdir(parents=True)
    pq.ParquetWriter(path, data.schema).close()


def write_bad(bad):
    data = mixed(5000)
    whole = write(bad, "schema-differs", data, row_group_size=1000).read_bytes()
    write(bad, "schema-differs", data.set_column(0, "id", data["id"].cast(pa.string())), 1)
    write(bad, "column-missing", data)
    write(bad, "column-missing", data.drop_columns(["text"]), 1)

    def put(name, content, file="part-00000.parquet"):
        path = bad / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    put("not-parquet", b"id,text\n1,one\n" * 100)
    put("empty-file", b"")
    put("too-short", b"PAR1")
    put("truncated", whole[: len(whole) // 2])
    put("truncated-tail", whole[:-1])
    put("footer-too-long", whole[:-8] + struct.pack("<I", 1 << 30) + b"PAR1")
    put("footer-corrupt", whole[:-200] + bytes(b ^ 0x5A for b in whole[-200:-8]) + whole[-8:])
    put("encrypted-magic", whole[:-4] + b"PARE")
    put("page-corrupt", corrupt_page(whole))
    # Nothing but the page's checksum tells that these bytes are wrong.
    plain = {"compression": "none", "use_dictionary": False, "write_page_checksum": True, "row_group_size": 1000}
    checked = write(bad, "page-checksum-wrong", data.select(["id", "flag", "score"]), **plain)
    checked.write_bytes(corrupt_page(checked.read_bytes()))
    put("good-then-garbage", whole, "part-00000.parquet")
    put("good-then-garbage", random_.randbytes(5000), "part-00001.parquet")


def corrupt_page(whole):
    """The same file with 64 bytes flipped in the middle of the first column chunk of its third row group."""
    chunk = pq.ParquetFile(pa.BufferReader(whole)).metadata.row_group(2).column(2)
    start = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size // 2
    middle = bytes(b ^ 0xFF for b in whole[start : start + 64])
    return whole[:start] + middle + whole[start + 64 :]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    for part in (folder / "good", folder / "bad"):
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    write_types(folder / "good")
    write_layouts(folder / "good")
    write_bad(folder / "bad")


if __name__ == "__main__":
    main()
