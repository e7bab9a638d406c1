"""Engines that read Parquet: pyarrow, polars, DuckDB."""

from __future__ import annotations

import duckdb
import duckdb_ext
import numpy
import polars
import pyarrow as pa
import pyarrow.dataset as ds
from conftest import ROWS, Gateway, digest, table
from pyarrow import fs


def whole() -> pa.Table:
    return pa.concat_tables([table(part * ROWS, ROWS) for part in range(3)])


def test_pyarrow_reads_files_and_a_dataset(gateway: Gateway) -> None:
    files = fs.S3FileSystem(
        access_key=gateway.key,
        secret_key=gateway.secret,
        endpoint_override=gateway.endpoint.removeprefix("http://"),
        scheme="http",
        region=gateway.region,
    )
    for key, path in {**gateway.files("set"), **gateway.files("odd")}.items():
        with files.open_input_stream(f"{gateway.bucket}/{key}", compression=None) as stream:
            assert digest(stream.read()) == digest(path.read_bytes()), key
    dataset = ds.dataset(f"{gateway.bucket}/table", filesystem=files)
    assert dataset.to_table().sort_by("id").equals(whole())
    few = dataset.to_table(columns=["x"], filter=ds.field("id") == ROWS + 5)
    assert few["x"].to_pylist() == [table(ROWS, ROWS)["x"][5].as_py()]
    infos = files.get_file_info(fs.FileSelector(f"{gateway.bucket}/set"))
    assert sorted(info.size for info in infos) == sorted(p.stat().st_size for p in gateway.files("set").values())


def test_polars_scans(gateway: Gateway) -> None:
    options = {
        "aws_endpoint_url": gateway.endpoint,
        "aws_access_key_id": gateway.key,
        "aws_secret_access_key": gateway.secret,
        "aws_region": gateway.region,
        "aws_allow_http": "true",
    }
    frame = polars.scan_parquet(f"s3://{gateway.bucket}/table/*.parquet", storage_options=options)
    got = frame.group_by("group").agg(polars.col("noise").max()).sort("group").collect()
    wanted = whole().group_by("group").aggregate([("noise", "max")]).sort_by("group")
    assert got["noise"].to_list() == wanted["noise_max"].to_pylist()
    assert frame.select("id").collect()["id"].to_list() == list(range(3 * ROWS))


def test_duckdb_globs_and_asks(gateway: Gateway) -> None:
    database = duckdb.connect()
    duckdb_ext.init(database)
    database.execute("LOAD httpfs")
    host = gateway.endpoint.removeprefix("http://")
    database.execute(
        f"CREATE SECRET (TYPE s3, KEY_ID '{gateway.key}', SECRET '{gateway.secret}', REGION '{gateway.region}', "
        f"ENDPOINT '{host}', URL_STYLE 'path', USE_SSL false)"
    )
    where = f"'s3://{gateway.bucket}/table/*.parquet'"
    ask = lambda query: database.sql(query).fetchall()
    assert len(ask(f"SELECT * FROM glob({where})")) == 3
    assert ask(f"SELECT count(*), sum(id) FROM {where}") == [(3 * ROWS, sum(range(3 * ROWS)))]
    assert ask(f"SELECT max(noise) FROM {where}") == [(int(numpy.max(whole()["noise"].to_numpy())),)]
    assert ask(f"SELECT id FROM {where} WHERE id = {ROWS + 7}") == [(ROWS + 7,)]
