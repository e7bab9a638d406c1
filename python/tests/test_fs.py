"""Any object through fsspec: what the object store holds, to the byte, and nothing that is written."""

from __future__ import annotations

import errno
import os
import pickle
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import fsspec.parquet
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


@pytest.fixture
def files(node: forebay.LocalNode) -> Iterator[ForebayFileSystem]:
    """Files of this machine."""
    fs = ForebayFileSystem(node, target_protocol="file", skip_instance_cache=True)
    yield fs
    # pytest keeps the filesystem while the node is stopped, which it would start again.
    del fs._objects


def the_store(cluster: Cluster) -> Any:
    """The object store itself."""
    return pyarrow.fs.S3FileSystem(
        access_key=cluster.store["s3_access_key_id"],
        secret_key=cluster.store["s3_secret_access_key"],
        endpoint_override=cluster.store["s3_endpoint"],
        region=cluster.store["s3_region"],
    )


def write(cluster: Cluster, path: str, content: bytes) -> None:
    with the_store(cluster).open_output_stream(path) as out:
        out.write(content)


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


def test_what_comes_while_it_is_asked_for_is_a_file(fs: ForebayFileSystem, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    key, ask, asked = f"{cluster.bucket}/rows/0.parquet", fs._info, []

    def late(path: Any) -> dict[str, Any]:
        asked.append(path)
        if len(asked) == 1:
            raise forebay.NotFoundError(f"{path}: no such object")
        return ask(path)

    monkeypatch.setattr(fs, "_info", late)
    info = fs.info(key)
    assert info["type"] == "file" and info == ask(key) and len(asked) == 2


def test_a_path_of_another_object_store_is_refused(cluster: Cluster, fs: ForebayFileSystem, tmp_path: Path) -> None:
    """By whatever takes a path."""
    key, to = f"{cluster.bucket}/rows/0.parquet", str(tmp_path / "copy")
    calls: list[Any] = [
        *(fs.open, fs.cat, fs.cat_file, fs.glob, fs.find, fs.ls, fs.info, fs.exists, fs.isfile, fs.isdir, fs.du, fs.head),
        *(fs.tail, fs.modified, fs.ukey, fs.checksum, fs.size, fs.expand_path, fs.get_mapper, fs.unstrip_protocol, fs.read_text),
        lambda path: fs.open(path, "rt"),
        lambda path: fs.cat([f"s3://{key}", path]),
        lambda path: fs.cat_ranges([path], [0], [1]),
        lambda path: fs.cat(path.rpartition("/")[0], recursive=True),
        lambda path: fs.get(path, to),
        lambda path: fs.get([path], [to]),
        lambda path: fs.get_file(path, to),
        lambda path: fs.glob(path.replace("0", "*")),
        lambda path: list(fs.walk(path.rpartition("/")[0])),
        lambda path: fs.read_block(path, 0, 1),
        lambda path: ds.dataset(path, filesystem=fs),
        lambda path: fsspec.filesystem("simplecache", fs=fs).cat_file(path),
    ]
    for call in calls:
        for scheme in ["gs", "abfss", "file", "hdfs", "S3"]:
            with pytest.raises(forebay.InvalidError, match=f"^{scheme}://{cluster.bucket}/rows.*: this filesystem reads s3://"):
                call(f"{scheme}://{key}")
    assert not Path(to).exists()
    for scheme in ["s3", "s3a", "s3n", "forebay"]:
        assert fs.head(f"{scheme}://{key}", 4) == b"PAR1"


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
    chance = random.Random(11)
    errors = 0
    for number in range(10):
        path = f"{cluster.bucket}/changing/{number}"
        old, new = (chance.randbytes(9_000_000 + number % 3) for _ in range(2))
        write(cluster, path, old)
        with fs.open(path) as file:
            read = file.read(chance.randrange(1, 9_000_000))
            write(cluster, path, new)
            try:
                read += file.read()
                assert read == old
            except ChangedError:
                errors += 1
                assert old.startswith(read)
        assert fs.cat_file(path) == new
    assert errors > 0, "it never changed in mid-read"


def test_nothing_is_written(cluster: Cluster, fs: ForebayFileSystem, tmp_path: Path) -> None:
    folder = f"{cluster.bucket}/texts"
    held, path = f"{folder}/lines.csv", f"{folder}/new"
    (tmp_path / "a").touch()
    writes: list[Any] = [
        lambda: fs.open(path, "wb"),
        lambda: fs.open(path, "ab"),
        lambda: fs.open(path, "xb"),
        lambda: fs.open(path, "r+b"),
        lambda: fs.open(path, "w"),
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
        lambda: fs.write_bytes(path, b"1"),
        lambda: fs.pipe({path: b"1"}),
        lambda: fs.pipe_file(path, b"1", mode="create"),
        lambda: fs.pipe_file(held, b"1", mode="overwrite"),
        lambda: fs.put(str(tmp_path), path, recursive=True),
        lambda: fs.put([str(tmp_path / "a")], [path]),
        lambda: fs.put_file(str(tmp_path / "a"), path),
        lambda: fs.upload(str(tmp_path / "a"), path),
        lambda: fs.copy(held, path),
        lambda: fs.copy(folder, path, recursive=True),
        lambda: fs.cp([held], [path]),
        lambda: fs.mv(held, path),
        lambda: fs.move(held, path),
        lambda: fs.rename(held, path),
        lambda: fs.rm(folder, recursive=True),
        lambda: fs.delete(held),
        lambda: fs.makedir(path),
        lambda: fs.mkdirs(path),
        lambda: fs.touch(held, truncate=False),
        lambda: fs.get_mapper(folder).update({"new": b"1"}),
    ]
    before = fs.find(cluster.bucket, detail=True)
    for write in writes:
        with pytest.raises(OSError, match="written|only read|write to") as refused:
            write()
        assert refused.value.errno == errno.EROFS
    assert fs.find(cluster.bucket, detail=True) == before


def test_wrong_arguments(cluster: Cluster, data: Path, fs: ForebayFileSystem) -> None:
    path = f"{cluster.bucket}/texts/lines.csv"
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
    with pytest.raises(forebay.InvalidError, match="begins with a bucket"):
        fs.ls("")
    objects = fs._objects
    version = objects.version(f"s3://{path}")
    assert isinstance(version, _forebay.ObjectVersion)
    with pytest.raises(forebay.InvalidError):
        objects.read(version, 0, version.size + 1)
    with pytest.raises(forebay.InvalidError):
        objects.read(version, 2, 1)


def test_an_unknown_keyword_is_refused(cluster: Cluster) -> None:
    """It may be the one that names the cache: with no cache named, a node of this machine would be started."""
    wrong = {
        "endpiont": "there are endpoint, etcd_hosts, .*, target_options, and the s3_",
        "secret": "target_options={'key'.* key= is the file of a private key",
        "anon": "target_options=",
        "client_kwargs": "target_options=",
        "config_kwargs": "s3fs has no counterpart",
        "default_block_size": r"to open\(\)",
        "worker_hosts": "endpoint= here: the nodes",
        "preload_path": "alluxiofs has no counterpart",
        "fo": "simplecache::forebay://bucket/key",
    }
    for name, remedy in wrong.items():
        with pytest.raises(TypeError, match=rf"forebay.ForebayFileSystem\(\) knows no keyword '{name}': .*{remedy}"):
            fsspec.filesystem("forebay", **{name: "a"})
        with pytest.raises(TypeError, match=name):
            fsspec.open(f"forebay://{cluster.bucket}/texts/lines.csv", endpoint=cluster.endpoint, **{name: "a"})
    with pytest.raises(TypeError, match="knows no keyword 's3_regoin': for the object store there are s3_endpoint"):
        fsspec.filesystem("forebay", s3_regoin="a")
    # Those that fsspec has for all.
    options = {"use_listings_cache": False, "listings_expiry_time": 1, "max_paths": 9, "asynchronous": False, "loop": None}
    fs = fsspec.filesystem("forebay", endpoint=cluster.endpoint, skip_instance_cache=True, target_options=None, **options)
    assert fs.cat_file(f"{cluster.bucket}/texts/lines.csv", 0, 7) == b"id,name"


@pytest.mark.parametrize("cache", ["simplecache", "filecache", "blockcache"])
def test_chained_urls(cluster: Cluster, data: Path, tmp_path: Path, cache: str) -> None:
    url = f"forebay://{cluster.bucket}/texts/lines.csv"
    options = {"forebay": {"endpoint": cluster.endpoint}, cache: {"cache_storage": str(tmp_path / "url")}}
    with fsspec.open(f"{cache}::{url}", **options) as file:
        assert file.read() == (data / "texts/lines.csv").read_bytes()
    keywords = {"target_protocol": "forebay", "target_options": options["forebay"], "cache_storage": str(tmp_path / "fs")}
    fs = fsspec.filesystem(cache, **keywords)
    assert fs.cat_file(url) == (data / "texts/lines.csv").read_bytes() and len(fs.ls(f"forebay://{cluster.bucket}/rows")) == 3
    within = fsspec.filesystem("dir", path=f"{cluster.bucket}/texts", target_protocol="forebay", target_options=options["forebay"])
    assert within.cat_file("empty") == b"" and "lines.csv" in within.find("")


def test_pickles_are_of_one_version(
    cluster: Cluster, fs: ForebayFileSystem, files: ForebayFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the package; and of an open file's object."""
    copy = pickle.loads(pickle.dumps(fs))
    assert type(copy) is ForebayFileSystem and copy.storage_args == fs.storage_args and copy == pickle.loads(pickle.dumps(copy))
    path = tmp_path / "object"
    path.write_bytes(b"0123456789")
    with files.open(str(path), block_size=5, cache_type="none") as file:
        file.seek(4)
        pickled = pickle.dumps(file)
    with pickle.loads(pickled) as again:
        assert again.read() == b"456789" and (again.blocksize, again.cache.name) == (5, "none")
    path.write_bytes(b"abcdefghij")
    with pytest.raises(ChangedError, match="object: was overwritten since the open file was pickled"):
        pickle.loads(pickled)
    with monkeypatch.context() as patch:
        patch.setattr(_forebay, "__version__", "0.0.1")
        old = pickle.dumps(fs)
    with pytest.raises(forebay.InvalidError, match=r"the filesystem was pickled by forebay 0\.0\.1, .* or make it there"):
        pickle.loads(old)


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
    # Whole, with each of its types, as from the files that the object store serves.
    through, stored = (connection.sql(f"from '{at}/*.parquet'") for at in (f"forebay://{cluster.bucket}/rows", data / "rows"))
    assert through.types == stored.types and through.columns == table.column_names
    assert through.to_arrow_table().num_rows == 600 and through.to_arrow_table().equals(stored.to_arrow_table())
    pandas.testing.assert_frame_equal(
        pandas.read_parquet(f"forebay://{cluster.bucket}/rows", storage_options=options), pandas.read_parquet(data / "rows")
    )


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


def test_an_open_file_is_of_one_version(files: ForebayFileSystem, tmp_path: Path) -> None:
    path = tmp_path / "object"
    path.write_bytes(b"a" * 9_000_000)
    with files.open(str(path)) as file:
        assert file.read(10) == b"a" * 10
        path.write_bytes(b"b" * 9_000_001)
        with pytest.raises(forebay.ChangedError, match="object"):
            file.read()
    assert files.cat_file(str(path)) == b"b" * 9_000_001


@pytest.fixture(scope="module")
def node() -> Iterator[forebay.LocalNode]:
    """A node of its own on this machine, which reads files."""
    # Not pytest's folder: the path of a socket must be short.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="forebay-") as root:
        patch.setenv("FOREBAY_RUNTIME_DIR", f"{root}/run")
        patch.setenv("FOREBAY_SERVER", str(BIN / "forebay-server"))
        node = forebay.local_node(cache_dir=f"{root}/cache", cache_bytes="1GB", memory_bytes="256MB", idle_s=60)
        yield node
        # fsspec keeps what was unpickled.
        ForebayFileSystem.clear_instance_cache()
        node.stop()
