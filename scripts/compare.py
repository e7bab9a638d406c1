#!/usr/bin/env python3
"""Compares Arrow IPC streams with what pyarrow reads from Parquet files, value by value, in file order.

    compare.py FOLDER STREAM [FOLDER STREAM]... [--columns a,b] [--limit ROWS] [--any-order]

FOLDER holds the Parquet files of one dataset, or is an Arrow IPC stream (NAME.arrow) itself; STREAM is a file, or - for stdin. Ends with 0 if all are equal, with 1 if not;
a line for each pair says so (stdout), or where the first difference is (stderr). Two types count as the same if they say the same about the
values: a dictionary and its values, a string and a large string or string view, date32 and date64.
"""

import argparse
import math
import pathlib
import sys

import pyarrow as pa
import pyarrow.parquet as pq


def same_kind(kind):
    """The plainest type with the same values."""
    t = pa.types
    if t.is_dictionary(kind):
        return same_kind(kind.value_type)
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return pa.large_string()
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind):
        return pa.large_binary()
    if t.is_date64(kind):
        return pa.date32()
    if t.is_fixed_size_list(kind):
        return pa.list_(same_kind(kind.value_type), kind.list_size)
    if t.is_list(kind) or t.is_large_list(kind):
        return pa.large_list(same_kind(kind.value_type))
    if t.is_map(kind):
        return pa.map_(same_kind(kind.key_type), same_kind(kind.item_type))
    if t.is_struct(kind):
        return pa.struct([(field.name, same_kind(field.type)) for field in kind])
    return kind


def expected_table(folder, columns):
    if str(folder).endswith(".arrow"):
        return pa.ipc.open_stream(str(folder)).read_all()
    paths = sorted(pathlib.Path(folder).glob("**/*.parquet"))
    if not paths:
        sys.exit(f"no Parquet files in {folder}")
    # One by one, without pyarrow's notion of datasets: no partitions, no unified schemas.
    tables = [pq.ParquetFile(path).read() for path in paths]
    table = pa.concat_tables(tables)
    return table.select(columns) if columns else table


def equal(a, b):
    """Equality of Python values, with NaN equal to itself."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


def plain(column):
    """Values that Python can hold exactly: nanoseconds as integers."""

    def exact(kind):
        t = pa.types
        if t.is_timestamp(kind) or t.is_duration(kind) or t.is_time64(kind):
            return pa.int64()
        if t.is_time32(kind):
            return pa.int32()
        if t.is_fixed_size_list(kind):
            return pa.list_(exact(kind.value_type), kind.list_size)
        if t.is_large_list(kind):
            return pa.large_list(exact(kind.value_type))
        if t.is_map(kind):
            return pa.map_(exact(kind.key_type), exact(kind.item_type))
        if t.is_struct(kind):
            return pa.struct([(field.name, exact(field.type)) for field in kind])
        return kind

    kind = exact(column.type)
    return column if kind == column.type else column.cast(kind)


def difference(name, got, want):
    """None, or a line that says where the two columns differ."""
    kind = same_kind(want.type)
    if same_kind(got.type) != kind:
        return f"column {name!r} is of type {got.type}, not {want.type}"
    got, want = (column if column.type == kind else column.cast(kind) for column in (got, want))
    if got.equals(want):
        return None
    got, want = plain(got), plain(want)
    step = 10_000
    for start in range(0, len(want), step):
        pairs = zip(got.slice(start, step).to_pylist(), want.slice(start, step).to_pylist())
        for row, (a, b) in enumerate(pairs, start):
            if not equal(a, b):
                return f"column {name!r}, row {row}: {a!r:.200}, not {b!r:.200}"
    return None


def sort_rows(table):
    """Rows in an order that depends on their values only."""
    columns = []
    for column in table.columns:
        kind = same_kind(column.type)
        columns.append(plain(column if column.type == kind else column.cast(kind)).to_pylist())
    keys = [repr(row) for row in zip(*columns)]
    return table.take(pa.array(sorted(range(table.num_rows), key=keys.__getitem__), pa.int64()))


def compare(got, want):
    if got.column_names != want.column_names:
        return f"the columns are {got.column_names}, not {want.column_names}"
    if got.num_rows != want.num_rows:
        return f"there are {got.num_rows} rows, not {want.num_rows}"
    for index, name in enumerate(want.column_names):
        found = difference(name, got.column(index), want.column(index))
        if found:
            return found
    return None


def compare_pair(folder, stream, arguments):
    with sys.stdin.buffer if stream == "-" else open(stream, "rb") as source:
        got = pa.ipc.open_stream(source).read_all()
    got.validate(full=True)
    want = expected_table(folder, arguments.columns).slice(0, arguments.limit)
    if arguments.any_order:
        got, want = sort_rows(got), sort_rows(want)
    return compare(got, want), want


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", metavar="FOLDER STREAM")
    parser.add_argument("--columns", type=lambda names: names.split(","))
    parser.add_argument("--limit", type=int)
    parser.add_argument("--any-order", action="store_true")
    arguments = parser.parse_args()
    if len(arguments.pairs) % 2:
        parser.error("each FOLDER needs its STREAM")
    differ = 0
    for folder, stream in zip(arguments.pairs[::2], arguments.pairs[1::2]):
        try:
            found, want = compare_pair(folder, stream, arguments)
        except (pa.ArrowException, OSError) as error:
            found = f"cannot be read: {error}"
        differ += bool(found)
        if found:
            print(f"{folder}: {found}", file=sys.stderr)
        else:
            print(f"{folder}: equal, {want.num_rows} rows of {want.num_columns} columns")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
