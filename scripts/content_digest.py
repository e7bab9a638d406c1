#!/usr/bin/env python3
"""The content digest of an epoch, computed from Parquet files by pyarrow alone: content_digest.py FOLDER PLAN

FOLDER holds the Parquet files of one dataset. PLAN is what `forebay plan --json` says of an epoch, all of it in one step: which
row stands at which position. docs/order.md defines the bytes. Prints 32 hex digits. Shares no code with Forebay.
"""

import base64
import decimal
import json
import pathlib
import struct
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

t = pa.types


def count(n):
    return struct.pack("<Q", n)


def value(scalar):
    """A value that is not null."""
    kind = scalar.type
    if t.is_boolean(kind):
        return bytes([scalar.as_py()])
    if t.is_floating(kind):
        width = kind.bit_width // 8
        # The bits as they are, also of a NaN.
        return pa.array([scalar], kind).buffers()[1].to_pybytes()[:width]
    if t.is_integer(kind):
        return scalar.as_py().to_bytes(kind.bit_width // 8, "little", signed=t.is_signed_integer(kind))
    if t.is_decimal(kind):
        unscaled = int(scalar.as_py().scaleb(kind.scale, decimal.Context(prec=80)))
        return unscaled.to_bytes(kind.bit_width // 8, "little", signed=True)
    if t.is_temporal(kind):
        return scalar.value.to_bytes(kind.bit_width // 8, "little", signed=True)
    if t.is_dictionary(kind):
        return value(scalar.dictionary[scalar.index.as_py()])
    if t.is_fixed_size_binary(kind):
        return scalar.as_py()
    if t.is_string(kind) or t.is_large_string(kind):
        text = scalar.as_py().encode()
        return count(len(text)) + text
    if t.is_binary(kind) or t.is_large_binary(kind):
        return count(len(scalar.as_py())) + scalar.as_py()
    if t.is_fixed_size_list(kind):
        return elements(scalar.values)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_map(kind):
        return count(len(scalar.values)) + elements(scalar.values)
    if t.is_struct(kind):
        return b"".join(marked(field) for field in scalar.values())
    sys.exit(f"no rule for {kind}")


def marked(scalar):
    return b"\1" + value(scalar) if scalar.is_valid else b"\0"


def elements(array):
    if array.null_count:
        return b"\0" + b"".join(marked(item) for item in array)
    return b"\1" + b"".join(value(item) for item in array)


def read(path):
    """A file's rows. pyarrow reads date64 as date32, for Parquet has no other date; the writer's schema tells."""
    file = pq.ParquetFile(path)
    table = file.read()
    stored = (file.metadata.metadata or {}).get(b"ARROW:schema")
    fields = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stored))) if stored else []
    for number, field in enumerate(fields):
        if t.is_date64(field.type):
            table = table.set_column(number, field.name, table.column(number).cast(field.type))
    return table


def main(folder, plan):
    paths = sorted(pathlib.Path(folder).glob("**/*.parquet"))
    table = pa.concat_tables([read(path) for path in paths]).combine_chunks()
    columns = [list(column) for column in table.columns]
    total = 0
    for slot in json.loads(pathlib.Path(plan).read_text())["slots"]:
        position, row = slot["position"], slot["row"]
        if position is not None:
            data = count(position) + b"".join(marked(column[row]) for column in columns)
            total += xxhash.xxh3_128_intdigest(data)
    print(f"{total % (1 << 128):032x}")


if __name__ == "__main__":
    main(*sys.argv[1:])
