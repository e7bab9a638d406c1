"""Any object through fsspec: what the store holds, to the byte, and nothing that is written."""

from __future__ import annotations

import errno
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import fsspec.parquet
import fsspec.tests.abstract as abstract
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from conftest import BIN, Cluster, needs

import forebay
from forebay import ChangedError, _forebay
from forebay.fs import AheadCache, ForebayFileSystem


@pytest.fixture
def fs(cluster: Cluster) -> ForebayFileSystem:
    return ForebayFileSystem(cluster.endpoint, skip_instance_cache=True)


def test_paths_and_listings(cluster: Cluster, data: Path, fs: ForebayFileSystem) -> None:
    """One name for each object, however it is called."""
    bucket = cluster.bucket
    names = [f"{bucket}/rows/{part}.parquet" for part in range(3)]
    for path in [f"{bucket}/rows", f"s3://{bucket}/rows/", f"forebay://{bucket}/rows", f"s3a://{bucket}/rows"]:
        assert fs.ls(path, detail=False) == names == [fs._strip_protocol(name) for name in fs.find(path)]
        assert all(name.startswith(path) for name in fs.find(path))
    assert fs.glob(f"s3://{bucket}/r*/[12].parquet") == names[1:]
    assert f"{bucket}/texts" in fs.ls(bucket, detail=False)
    assert fs.isdir(f"{bucket}/rows") and not fs.isfile(f"{bucket}/rows") and fs.isdir(bucket)
    assert fs.isfile(names[0]) and fs.exists(names[0]) and not fs.exists(f"{bucket}/rows/9.parquet") and not fs.exists(f"{bucket}/ro")
    info = fs.info(names[0])
    assert (info["name"], info["size"], info["type"]) == (names[0], (data / "rows/0.parquet").stat().st_size, "file")
    assert info["ETag"] and fs.modified(names[0]) == info["LastModified"] and fs.ls(names[0]) == [info]
    assert fs.ukey(names[0]) == fs.ukey(names[0]) != fs.ukey(names[1])
    assert fs.du(f"{bucket}/rows") == sum((data / f"rows/{part}.parquet").stat().st_size for part in range(3))
    for missing in [f"{bucket}/rows/9.parquet", f"{bucket}/nothing"]:
        for ask in [fs.info, fs.ls, fs.cat_file, fs.open]:
            with pytest.raises(FileNotFoundError, match="no"):
                ask(missing)


def test_bytes_are_the_store_s(cluster: Cluster, data: Path, fs: ForebayFileSystem) -> None:
    for name in ["lines.csv", "odd ä+%20.txt", "empty"]:
        path, expected = f"{cluster.bucket}/texts/{name}", (data / "texts" / name).read_bytes()
        assert fs.cat_file(path) == expected == fs.cat(f"s3://{path}")
        assert fs.cat_file(path, -10) == expected[-10:] and fs.cat_file(path, 3, -5) == expected[3:-5]
        assert fs.cat_file(path, 5, 10**9) == expected[5:] and fs.cat_file(path, 7, 3) == b""
        with fs.open(path) as file:
            assert file.read() == expected
    assert fs.cat(f"{cluster.bucket}/texts", recursive=True).keys() == set(fs.find(f"{cluster.bucket}/texts"))
    with fs.open(f"{cluster.bucket}/texts/lines.csv", "rt") as lines:
        assert [line.split(",")[0] for line in lines][1:] == [str(i) for i in range(50_000)]


def test_ranges_of_many_objects_come_in_one_call(cluster: Cluster, data: Path, fs: ForebayFileSystem) -> None:
    path, expected = f"{cluster.bucket}/texts/lines.csv", (data / "texts/lines.csv").read_bytes()
    places = [(start, start + 100) for start in range(0, len(expected), 5000)]
    paths = [path] * len(places) + [f"{cluster.bucket}/texts/missing"]
    starts, ends = [*(start for start, _ in places), 0], [*(end for _, end in places), 1]
    *read, failed = fs.cat_ranges(paths, starts, ends)
    assert read == [expected[start:end] for start, end in places]
    assert isinstance(failed, forebay.NotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(paths, starts, ends, on_error="raise")
    parquet = fsspec.parquet.open_parquet_file(f"{cluster.bucket}/rows/0.parquet", columns=["name"], engine="pyarrow", fs=fs)
    with parquet as file:
        assert pq.read_table(file, columns=["name"]) == pq.read_table(data / "rows/0.parquet", columns=["name"])


@pytest.mark.parametrize("seed", range(20))
def test_reads_ahead_only_of_who_goes_on(seed: int) -> None:
    """Any mix of seeks and reads brings the file's bytes; jumps fetch no byte that was not asked for."""
    chance = random.Random(seed)
    content = chance.randbytes(3_000_000)
    fetched: list[tuple[int, int]] = []

    def fetch(start: int, stop: int) -> bytes:
        fetched.append((start, stop))
        return content[start:stop]

    cache = AheadCache(1, fetch, len(content))
    at = 0
    for _ in range(300):
        if chance.random() < 0.2:
            at = chance.randrange(len(content) + 1)
        length = chance.choice([1, 100, 10_000, 300_000])
        before = len(fetched)
        assert cache._fetch(at, at + length) == content[at : at + length], f"seed {seed}"
        at = min(at + length, len(content))
        assert len(fetched) - before <= 1
    jumps = AheadCache(1, fetch, len(content))
    for _ in range(50):
        start = chance.randrange(len(content) - 200)
        fetched.clear()
        jumps._fetch(start, start + 100)
        assert fetched == [(start, start + 100)]
    lines = AheadCache(1, fetch, len(content))
    fetched.clear()
    for start in range(0, len(content), 1000):
        lines._fetch(start, start + 1000)
    assert len(fetched) < 10 and sum(stop - start for start, stop in fetched) == len(content)


def test_an_object_overwritten_in_mid_read_is_an_error_or_one_version(cluster: Cluster, fs: ForebayFileSystem) -> None:
    store = pyarrow.fs.S3FileSystem(
        access_key=cluster.store["s3_access_key_id"],
        secret_key=cluster.store["s3_secret_access_key"],
        endpoint_override=cluster.store["s3_endpoint"],
        region=cluster.store["s3_region"],
    )

    def write(path: str, content: bytes) -> None:
        with store.open_output_stream(path) as out:
            out.write(content)

    chance = random.Random(11)
    errors = 0
    for number in range(10):
        path = f"{cluster.bucket}/changing/{number}"
        old, new = (chance.randbytes(9_000_000 + number % 3) for _ in range(2))
        write(path, old)
        with fs.open(path) as file:
            read = file.read(chance.randrange(1, 9_000_000))
            write(path, new)
            try:
                read += file.read()
                assert read == old
            except ChangedError:
                errors += 1
                assert old.startswith(read)
        assert fs.cat_file(path) == new
    assert errors > 0, "it never changed in mid-read"


def test_nothing_is_written(cluster: Cluster, fs: ForebayFileSystem, tmp_path: Path) -> None:
    path = f"{cluster.bucket}/texts/new"
    (tmp_path / "a").touch()
    writes: list[Any] = [
        lambda: fs.open(path, "wb"),
        lambda: fs.open(path, "ab"),
        lambda: fs.open(path, "xb"),
        lambda: fs.touch(path),
        lambda: fs.pipe(path, b"1"),
        lambda: fs.pipe_file(path, b"1"),
        lambda: fs.put(str(tmp_path / "a"), path),
        lambda: fs.rm(path),
        lambda: fs.rm_file(path),
        lambda: fs.mkdir(path),
        lambda: fs.makedirs(path),
        lambda: fs.rmdir(path),
        lambda: fs.cp_file(path, path + "2"),
        lambda: fs.copy(path, path + "2"),
        lambda: fs.mv(path, path + "2"),
        lambda: fs.write_text(path, "1"),
    ]
    for write in writes:
        with pytest.raises(OSError, match="written|only read|write to") as refused:
            write()
        assert refused.value.errno == errno.EROFS


def test_pickles_and_wrong_arguments(cluster: Cluster, data: Path, fs: ForebayFileSystem) -> None:
    path = f"{cluster.bucket}/texts/lines.csv"
    copy = pickle.loads(pickle.dumps(fs))
    assert copy.cat_file(path, 0, 7) == b"id,name"
    options = {"direct": True, "target_options": {"key": "a", "secret": "b", "client_kwargs": {"region_name": "r"}}}
    assert fsspec.filesystem("forebay", **options).target_protocol == "s3"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"target_protocol": "ftp"}, "target_protocol='ftp'"),
        ({"target_options": {"use_ssl": True}}, "target_options has 'use_ssl'"),
        ({"etcd_hosts": "h", "endpoint": "h:1"}, "leave out endpoint="),
        ({"endpoint": "h:1", "direct": True}, "contradict"),
    ]
    for arguments, why in wrong:
        with pytest.raises(forebay.InvalidError, match=why):
            ForebayFileSystem(**arguments, skip_instance_cache=True)
    with pytest.raises(forebay.RetryError, match="no etcd answers"):
        ForebayFileSystem(etcd_hosts="127.0.0.1:1", skip_instance_cache=True)
    with pytest.raises(forebay.InvalidError, match="this filesystem reads s3://"):
        fs.cat_file("gs://bucket/key")
    with pytest.raises(forebay.InvalidError, match="begins with a bucket"):
        fs.ls("")
    objects = fs._objects
    version = objects.version(f"s3://{path}")
    assert isinstance(version, _forebay.ObjectVersion)
    with pytest.raises(forebay.InvalidError):
        objects.read(version, 0, version.size + 1)
    with pytest.raises(forebay.InvalidError):
        objects.read(version, 2, 1)


def test_pandas_and_duckdb_read_through_it(cluster: Cluster, data: Path, table: pa.Table, fs: ForebayFileSystem) -> None:
    pandas, duckdb = needs("pandas"), needs("duckdb")
    options = {"endpoint": cluster.endpoint}
    columns = ["id", "x", "flag", "name"]
    read = pandas.read_parquet(f"forebay://{cluster.bucket}/rows", columns=columns, storage_options=options)
    pandas.testing.assert_frame_equal(read, table.select(columns).to_pandas())
    lines = pandas.read_csv(f"forebay://{cluster.bucket}/texts/lines.csv", storage_options=options)
    assert lines["id"].tolist() == list(range(50_000)) and lines["name"].iloc[-1] == "row 49999"
    connection = duckdb.connect(config={"threads": 2})
    connection.register_filesystem(fs)
    of = f"from 'forebay://{cluster.bucket}/rows/*.parquet'"
    assert connection.sql(f"select count(*), sum(id), max(name) {of}").fetchall() == [(600, 179_700, "row 99")]
    # Whole, with each of its types, as from the files that the store serves.
    through, stored = (connection.sql(f"from '{at}/*.parquet'") for at in (f"forebay://{cluster.bucket}/rows", data / "rows"))
    assert through.types == stored.types and through.columns == table.column_names
    assert through.to_arrow_table().num_rows == 600 and through.to_arrow_table().equals(stored.to_arrow_table())
    pandas.testing.assert_frame_equal(
        pandas.read_parquet(f"forebay://{cluster.bucket}/rows", storage_options=options), pandas.read_parquet(data / "rows")
    )


@pytest.mark.readers
def test_polars_and_dask_read_through_it(
    cluster: Cluster, data: Path, table: pa.Table, fs: ForebayFileSystem
) -> None:
    polars, dask, pandas = needs("polars"), needs("dask.dataframe"), needs("pandas")
    columns = ["id", "x", "flag", "name"]
    scan = polars.scan_pyarrow_dataset(ds.dataset(f"{cluster.bucket}/rows", filesystem=fs))
    assert scan.select(columns).collect().to_arrow().equals(polars.from_arrow(table.select(columns)).to_arrow())
    assert scan.collect().equals(polars.from_arrow(table))
    options = {"endpoint": cluster.endpoint}
    frame = dask.read_parquet(f"forebay://{cluster.bucket}/rows", columns=columns, storage_options=options).compute()
    assert frame["id"].tolist() == table["id"].to_pylist() and frame["name"].tolist() == table["name"].to_pylist()
    through, stored = (
        dask.read_parquet(at, storage_options=given).compute()
        for at, given in ((f"forebay://{cluster.bucket}/rows", options), (str(data / "rows"), None))
    )
    assert list(through.columns) == table.column_names and len(through) == 600
    pandas.testing.assert_frame_equal(through, stored)


# Of users of other caches, with the names changed; the last line reads the same rows, decoded once for everybody.
SNIPPET = """
import fsspec
import forebay.fs
fs = fsspec.filesystem("forebay", etcd_hosts="localhost", target_protocol="s3")
import pyarrow.dataset as ds
dataset = ds.dataset("s3://example_bucket/datasets/example.parquet", filesystem=fs)
dataset.count_rows()
dataset.schema
dataset.take([0])
dataset = forebay.dataset("s3://example_bucket/datasets/example.parquet"); dataset.count_rows(); dataset.schema; dataset.take(0)
"""


def test_the_snippet_of_users_of_other_caches(data: Path) -> None:
    """Word for word but for the names of etcd's host and the bucket, typed as into Python's prompt: each value is shown."""
    cluster = Cluster(data, 1, "--etcd")
    try:
        script = SNIPPET.replace("localhost", ",".join(cluster.etcd)).replace("example_bucket", cluster.bucket)
        typed = f"import code\nconsole = code.InteractiveConsole()\nfor line in {script!r}.splitlines(): console.push(line)\n"
        run = subprocess.run(
            [sys.executable, "-c", typed],
            env={**os.environ, "FOREBAY_ENDPOINT": cluster.endpoint},
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        cluster.stop()
    assert (run.returncode, run.stderr) == (0, "")
    stored = pq.read_table(data / "datasets/example.parquet")
    by_pyarrow, by_forebay = f"100\n{stored.schema!r}\n{stored.slice(0, 1)!r}\n", f"{stored.slice(0, 1)!r}\n"
    assert run.stdout.startswith(by_pyarrow) and run.stdout.endswith(by_forebay)
    schema = forebay.dataset(f"file://{data}/datasets", direct=True).schema
    assert f"100\n{schema!r}\n" in run.stdout.removeprefix(by_pyarrow)


def test_nodes_are_found_in_etcd(data: Path, table: pa.Table) -> None:
    """The snippet of users of other caches, with the names changed."""
    cluster = Cluster(data, 2, "--etcd")
    try:
        hosts = ",".join(["http://127.0.0.1:1", *cluster.etcd])
        fs = fsspec.filesystem("forebay", etcd_hosts=hosts, target_protocol="s3")
        dataset = ds.dataset(f"s3://{cluster.bucket}/rows", filesystem=fs)
        assert dataset.count_rows() == 600
        assert dataset.schema == table.schema
        assert dataset.take([0, 599]) == table.take([0, 599])
        assert dataset.to_table() == table
        with pytest.raises(forebay.NotFoundError, match="no node of a cache is registered under /other"):
            fsspec.filesystem("forebay", etcd_hosts=hosts, etcd_prefix="/other")
        cluster.kill(0)
        assert ds.dataset(f"s3://{cluster.bucket}/rows", filesystem=fs).to_table() == table
    finally:
        cluster.stop()


def test_an_open_file_is_of_one_version(node: forebay.LocalNode, tmp_path: Path) -> None:
    fs = ForebayFileSystem(node, target_protocol="file", skip_instance_cache=True)
    path = tmp_path / "object"
    path.write_bytes(b"a" * 9_000_000)
    with fs.open(str(path)) as file:
        assert file.read(10) == b"a" * 10
        path.write_bytes(b"b" * 9_000_001)
        with pytest.raises(forebay.ChangedError, match="object"):
            file.read()
    assert fs.cat_file(str(path)) == b"b" * 9_000_001


@pytest.fixture(scope="module")
def node() -> Iterator[forebay.LocalNode]:
    """A node of its own on this machine, which reads files."""
    # Not pytest's folder: the path of a socket must be short.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="forebay-") as root:
        patch.setenv("FOREBAY_RUNTIME_DIR", f"{root}/run")
        patch.setenv("FOREBAY_SERVER", str(BIN / "forebay-server"))
        node = forebay.local_node(cache_dir=f"{root}/cache", cache_bytes="1GB", memory_bytes="256MB", idle_s=60)
        yield node
        node.stop()


class WritableFileSystem(ForebayFileSystem):
    """What the suite writes goes to the store; all reads go through the cache."""

    def _open(self, path: Any, mode: str = "rb", **options: Any) -> Any:  # type: ignore[override]
        path = self._strip_protocol(path)
        if mode == "rb":
            return super()._open(path, mode, **options)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return open(path, mode)

    def makedirs(self, path: Any, exist_ok: bool = True) -> None:  # type: ignore[override]
        """Prefixes are there once objects are."""

    mkdir = makedirs  # type: ignore[assignment]

    def touch(self, path: Any, truncate: bool = True, **_: Any) -> None:  # type: ignore[override]
        with self._open(path, "wb"):
            pass

    def pipe(self, path: Any, value: Any = None, **_: Any) -> None:  # type: ignore[override]
        with self._open(path, "wb") as file:
            file.write(value)

    def rm(self, path: Any, recursive: bool = False, **_: Any) -> None:  # type: ignore[override]
        shutil.rmtree(self._strip_protocol(path), ignore_errors=True)


class TestGet(abstract.AbstractFixtures, abstract.AbstractGetTests):  # type: ignore[misc]
    """fsspec's own tests of reading."""

    @pytest.fixture
    def fs(self, node: forebay.LocalNode) -> WritableFileSystem:
        return WritableFileSystem(node, target_protocol="file", skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self, tmp_path: Path) -> str:
        return str(tmp_path / "store")
