"""A cluster of real nodes over a real S3 server, and the data in it."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pictures import damaged, photos, poster

# pytest finds the hooks by their names here.
from skips import pytest_make_collect_report, pytest_runtest_makereport

import forebay

# Imported once, by the process that worker processes are forked from. Where they are missing, so they are in the workers.
multiprocessing.set_forkserver_preload(["forebay.torch", "torchdata.stateful_dataloader"])


def needs(module: str) -> Any:
    """This module. Where Python is not 3.11, for which setup.sh unpacks torch, its tests are skipped; CI has that."""
    try:
        return importlib.import_module(module)
    except ImportError:
        if "CI" in os.environ or sys.version_info[:2] == (3, 11):
            raise
        pytest.skip(f"{module} is for Python 3.11 here", allow_module_level=True)


BIN = Path(os.environ["FOREBAY_BIN"])
ROWS = 600
# Decoded, so that the data has more segments than a window.
SEGMENT_BYTES = 4096
_DEEP = pa.struct({"size": pa.int32(), "name": pa.string(), "tags": pa.list_(pa.int32())})
HALF = pa.struct({"north": pa.int32(), "deep": _DEEP})
GAPS = pa.struct({"name": pa.string(), "tags": pa.list_(pa.int32()), "flag": pa.bool_()})


def half(i: int) -> dict[str, Any] | None:
    """A struct that is null, as are its field and the struct within it, in rows of their own."""
    deep = {"size": i, "name": f"deep {i}", "tags": [i, i]}
    return None if i % 4 == 0 else {"north": None if i % 5 == 0 else i, "deep": None if i % 3 == 0 else deep}


def rows(first: int, count: int) -> pa.Table:
    """Rows with a little of everything; everything is a function of the row's number."""
    ids = range(first, first + count)
    image = pa.array([[(i + j) % 256 for j in range(12)] for i in ids], pa.list_(pa.uint8(), 12))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "x": pa.array([i / 4 for i in ids], pa.float32()),
            "image": image,
            "flag": pa.array([i % 3 == 0 for i in ids], pa.bool_()),
            "name": pa.array([f"row {i}" for i in ids], pa.string()),
            "blob": pa.array([i.to_bytes(4, "big") for i in ids], pa.binary(4)),
            "age": pa.array([None if i % 5 == 0 else i for i in ids], pa.int32()),
            "tags": pa.array([list(range(i % 4)) for i in ids], pa.list_(pa.int32())),
            "vector": pa.array([None if i % 7 == 0 else [i, i + 1] for i in ids], pa.list_(pa.float32(), 2)),
            "place": pa.array([{"north": i, "east": -i} for i in ids], pa.struct({"north": pa.int32(), "east": pa.int32()})),
            "half": pa.array([half(i) for i in ids], HALF),
            "gaps": pa.array([{} if i % 4 == 0 else {"name": "n", "tags": [1], "flag": False} for i in ids], GAPS),
            "at": pa.array([i * 1_000_000 for i in ids], pa.timestamp("us", "UTC")),
        }
    )


def columns(count: int) -> pa.Table:
    """A table of many numbers, `age` with nulls among them; everything is a function of the row's number."""
    floats = {f"f{at:02}": pa.array([i + at / 16 for i in range(count)], pa.float32()) for at in range(20)}
    ages = pa.array([None if i % 9 == 0 else i for i in range(count)], pa.float32())
    numbers = {name: pa.array(range(count), pa.int64()) for name in ["id", "label"]}
    return pa.table({**floats, **numbers}).add_column(10, "age", ages)


class Cluster:
    """A running `forebay-test-cluster`."""

    def __init__(self, data: Path, nodes: int, *options: str) -> None:
        command = [str(BIN / "forebay-test-cluster"), "--data", str(data), "--nodes", str(nodes), *options]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        self.endpoint: str = ",".join(said["nodes"])
        self.etcd: list[str] = said["etcd"]
        self.bucket: str = said["bucket"]
        self.store: dict[str, Any] = {
            "s3_endpoint": said["s3_endpoint"],
            "s3_region": said["s3_region"],
            "s3_access_key_id": said["access_key"],
            "s3_secret_access_key": said["secret_key"],
        }

    def uri(self, name: str = "rows") -> str:
        return f"s3://{self.bucket}/{name}"

    def dataset(self, name: str = "rows", **options: Any) -> forebay.Dataset:
        return forebay.dataset(self.uri(name), endpoint=self.endpoint, segment_bytes=SEGMENT_BYTES, **options)

    def direct(self, name: str = "rows", **options: Any) -> forebay.Dataset:
        return forebay.dataset(self.uri(name), direct=True, segment_bytes=SEGMENT_BYTES, **self.store, **options)

    def kill(self, node: int) -> None:
        assert self._tell(f"kill {node}") == "done"

    def gets(self) -> int:
        """How many objects were read from the object store so far, wholly or in part."""
        return int(self._tell("gets"))

    def _tell(self, command: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def forebay(self, *arguments: str) -> Any:
        """What the command `forebay` answers in JSON."""
        options = ["--json", "--endpoint", self.endpoint, "--segment-bytes", str(SEGMENT_BYTES)]
        command = [str(BIN / "forebay"), *arguments, *options]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60).stdout)

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name in ["rows", "other", "wide"]:
        (folder / name).mkdir()
    for part in range(3):
        pq.write_table(rows(part * 200, 200), folder / f"rows/{part}.parquet", row_group_size=25)
    pq.write_table(rows(0, 100), folder / "other/0.parquet")
    (folder / "datasets").mkdir()
    pq.write_table(rows(0, 100), folder / "datasets/example.parquet", row_group_size=25)
    # More than connections hold under way when their node dies.
    wide = pa.table({"id": pa.array(range(600), pa.int64()), "blob": pa.array([bytes(100_000)] * 600, pa.binary())})
    pq.write_table(wide, folder / "wide/0.parquet", row_group_size=20)
    (folder / "columns").mkdir()
    pq.write_table(columns(300), folder / "columns/0.parquet", row_group_size=30)
    (folder / "grown").mkdir()
    pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), folder / "grown/0.parquet")
    pq.write_table(pa.table({"id": pa.array([2], pa.int64()), "x": [2.5]}), folder / "grown/1.parquet")
    (folder / "grown/2.parquet").touch()
    for name, pictures in [("photos", photos(48)), ("damaged", damaged()), ("poster", poster(8))]:
        (folder / name).mkdir()
        pq.write_table(pictures, folder / f"{name}/0.parquet", row_group_size=6)
    for name in ["digits", "tokens"]:
        (folder / name).mkdir()
    (folder / "texts").mkdir()
    (folder / "texts/lines.csv").write_text("id,name\n" + "".join(f"{i},row {i}\n" for i in range(50_000)))
    (folder / "texts/odd ä+%20.txt").write_bytes(bytes(range(256)) * 64)
    (folder / "texts/empty").touch()
    tokens = pa.array([[(i + j) % 1000 for j in range(17)] for i in range(96)], pa.list_(pa.int32(), 17))
    pq.write_table(pa.table({"tokens": tokens}), folder / "tokens/0.parquet", row_group_size=8)
    digits = pq.read_table(Path(__file__).parent.parent.parent / "tests/data/mnist/test").slice(0, 800)
    pq.write_table(digits, folder / "digits/0.parquet", row_group_size=100)
    (folder / "mnist").symlink_to(Path(__file__).parent.parent.parent / "tests/data/mnist/test")
    return folder


@pytest.fixture(scope="session")
def cluster(data: Path) -> Iterator[Cluster]:
    """Two nodes that no test harms."""
    cluster = Cluster(data, 2)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def table(data: Path) -> pa.Table:
    """The rows, as pyarrow reads them from the files."""
    return pq.read_table(data / "rows")
