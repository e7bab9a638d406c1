"""Datasets as tables: the same rows as pyarrow reads, whichever way they are asked for."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROWS, Cluster, needs

import forebay
from forebay._dataset import _split
from forebay._progress import reporting
from forebay._source import source_settings


def test_what_is_known_without_reading(cluster: Cluster, table: pa.Table) -> None:
    ds = cluster.dataset()
    assert (ds.num_rows, len(ds), ds.count_rows()) == (ROWS, ROWS, ROWS)
    assert ds.columns == table.column_names
    assert pa.schema(ds.schema).equals(table.schema)
    assert ds.num_segments > 4
    assert [uri.rsplit("/", 1)[1] for uri, _, _ in ds.objects] == ["0.parquet", "1.parquet", "2.parquet"]
    assert cluster.uri() in repr(ds) and ds.version in repr(ds) and "600 rows" in repr(ds)


@pytest.mark.parametrize("way", ["dataset", "direct"])
def test_rows_are_those_of_the_files(cluster: Cluster, table: pa.Table, way: str) -> None:
    ds: forebay.Dataset = getattr(cluster, way)()
    assert ds.version == cluster.dataset().version
    assert ds.to_table().equals(table)
    assert ds.head(7).equals(table.slice(0, 7))
    chosen = [599, 0, 300, 300, 7, -1]
    assert ds.take(chosen).equals(table.take([599, 0, 300, 300, 7, 599]))
    assert ds.take(3).equals(table.slice(3, 1)) and ds.take([]).equals(table.slice(0, 0))
    batch = next(iter(forebay.Loader(ds, batch_size=20, seed=1)))
    assert ds.take(batch.sample_ids).equals(table.take(pa.array(batch.sample_ids)))
    assert ds.take(pa.array([5, 3])).equals(table.take([5, 3]))
    some = ds.select(["name", "id"])
    assert some.to_table().equals(table.select(["name", "id"])) and some.version == ds.version
    assert some.take([5]).equals(table.select(["name", "id"]).slice(5, 1))


def test_any_reader_of_arrow_takes_it(cluster: Cluster, table: pa.Table) -> None:
    ds = cluster.dataset()
    assert pa.table(ds).equals(table)
    reader = pa.RecordBatchReader.from_stream(ds)
    assert reader.schema.equals(table.schema) and reader.read_all().equals(table)
    batches = [pa.record_batch(batch) for batch in ds.scan()]
    for batch in batches:
        batch.validate(full=True)
    assert pa.Table.from_batches(batches).equals(table)
    first = next(iter(ds.scan()))
    assert pa.array(first["name"]).to_pylist()[:2] == ["row 0", "row 1"]
    assert first.keys() == ds.columns and len(first) == first.num_rows


def test_frames_of_pandas_and_polars(cluster: Cluster, table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = needs("pandas")
    ds = cluster.dataset(columns=["id", "name", "age"])
    expected = table.select(["id", "name", "age"])
    pandas.testing.assert_frame_equal(ds.to_pandas(), expected.to_pandas())
    polars = needs("polars")
    assert ds.to_polars().equals(polars.from_arrow(expected))
    for name, take in {"pandas": ds.to_pandas, "polars": ds.to_polars}.items():
        monkeypatch.setitem(sys.modules, name, None)
        told = rf"^to_{name}\(\) needs {name}: pip install {name}, or take the rows by to_table\(\)$"
        with pytest.raises(ModuleNotFoundError, match=told):
            take()


@pytest.mark.parametrize("way", ["dataset", "direct"])
def test_bytes_are_known_without_reading(cluster: Cluster, way: str) -> None:
    """100 KB and 8 bytes in each of 600 rows, whichever columns are read."""
    ds: forebay.Dataset = getattr(cluster, way)("wide")
    assert 600 * 100_008 <= ds.nbytes < 600 * 101_000
    assert ds.select(["id"]).nbytes == ds.nbytes
    half: forebay.Dataset = getattr(cluster, way)("wide", split=(0, 300))
    assert 0.45 < half.nbytes / ds.nbytes < 0.55


def test_a_scan_is_read_once(cluster: Cluster) -> None:
    rows = cluster.dataset().scan()
    assert sum(len(batch) for batch in rows) == ROWS
    assert list(rows) == []
    with cluster.dataset().scan() as rows:
        next(rows)
    with pytest.raises(forebay.ClosedError, match="scan again"):
        next(rows)


def test_rows_are_named_by_whole_numbers(cluster: Cluster) -> None:
    numpy = needs("numpy")
    ds = cluster.dataset(columns=["id"])
    for number in [numpy.int64(7), numpy.array(7), numpy.array([7])]:
        assert ds.take(number)["id"].to_pylist() == [7]
    wrong: list[Any] = [None, 2.5, slice(3)]
    for rows in wrong:
        with pytest.raises(TypeError, match="pass the number of a row, or numbers of several"):
            ds.take(rows)


def test_a_path_is_one_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a b.parquet")
    monkeypatch.chdir(tmp_path.parent)
    mix: Any = {tmp_path: 1.0}
    for path in [tmp_path, Path(tmp_path.name), Path(tmp_path.name, "a b.parquet"), mix]:
        assert forebay.dataset(path, direct=True).num_rows == 2


def test_keywords_for_the_store_may_be_of_any_make(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = needs("numpy")
    monkeypatch.chdir(tmp_path)
    given = source_settings("dataset", {"s3_ca": Path("ca.pem"), "s3_max_requests": numpy.int64(8)})
    assert json.loads(given) == {"s3_ca": str(tmp_path / "ca.pem"), "s3_max_requests": 8}
    # One that is None is as if it were left out, with a cache and without.
    unset: dict[str, Any] = {"s3_region": None, "s3_anonymous": None, "s3_max_requests": None}
    assert cluster.dataset(**unset).num_rows == ROWS
    assert cluster.direct(s3_profile=None, s3_anonymous=None, patience_s=None).num_rows == ROWS


def test_a_split_by_numpy_s_numbers_is_one_of_rows(cluster: Cluster, table: pa.Table) -> None:
    numpy = needs("numpy")
    pairs = [(0, 1), (numpy.int64(0), numpy.int64(1)), (0, numpy.uint8(1))]
    assert [cluster.dataset(split=pair).num_rows for pair in pairs] == [1, 1, 1]
    assert cluster.dataset(split=(numpy.float64(0), numpy.float32(0.5))).num_rows == 300
    wrong: Any = (0, 1, 2)
    with pytest.raises(forebay.InvalidError, match=r"split=\(0, 1, 2\) is no pair: pass \(start, stop\)"):
        cluster.dataset(split=wrong)
    wrong = (None, 5)
    with pytest.raises(forebay.InvalidError, match=r"split=\(None, 5\) is no pair"):
        cluster.dataset(split=wrong)
    assert _split((1e-05, 2e-05)) == "0.00001:0.00002" and _split((0.0, 1.0)) == "0.0:1.0"


def test_a_split_is_a_dataset(cluster: Cluster, table: pa.Table) -> None:
    assert cluster.dataset(split=(0.0, 0.5)).to_table().equals(table.slice(0, 300))
    tail = cluster.dataset(split=(450, 600), columns=["id"])
    assert tail.to_table()["id"].to_pylist() == list(range(450, 600))
    assert tail.take([0, -1])["id"].to_pylist() == [450, 599]
    uris = {cluster.uri(): 0.5, cluster.uri("other"): 0.5}
    mixed = forebay.dataset(uris, endpoint=cluster.endpoint, segment_bytes=4096)
    assert mixed.num_rows == ROWS + 100


def test_the_cache_is_filled_pinned_asked_and_freed(cluster: Cluster) -> None:
    ds = cluster.dataset("other")
    seen: list[forebay.Progress] = []
    held = ds.load(seen.append)
    assert held.segments_held == held.segments == ds.num_segments and held.bytes_held == held.bytes > 0
    assert seen[-1] == held
    nodes = ds.status()
    assert sum(node["segments_held"] for node in nodes) == ds.num_segments and len(nodes) == 2
    assert ds.pin() > 0
    assert ds.pin(False) > 0
    with pytest.raises(forebay.NotFoundError, match="pin"):
        ds.pin(False)
    assert ds.free() > 0
    assert sum(node["segments_held"] for node in ds.status()) == 0

    def stop(_: forebay.Progress) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        ds.load(stop)


def test_progress_is_shown_by_tqdm(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    ds = cluster.dataset("other")
    held = ds.load(progress=True)
    shown = capsys.readouterr().err
    assert cluster.uri("other") in shown and "100%" in shown and f"{held.segments} of {held.segments} segments" in shown
    assert ds.load(progress=False) == ds.load() and capsys.readouterr().err == ""


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_without_tqdm_is_a_line(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    ds = cluster.dataset("other")
    held = ds.load(progress=True)
    *_, last = re.split("[\r\n]", capsys.readouterr().err.strip())
    done = f"{held.segments} of {held.segments} segments"
    assert last.removesuffix("\x1b[K") == f"{cluster.uri('other')}: 100% of {held.bytes / 1e6:.1f} MB, {done}"


def test_lines_of_progress_are_rare(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with reporting(True, "s3://b/x") as report:
        assert report is not None
        for held in range(1001):
            report(forebay.Progress(held, 1000, held * 10_000, 10_000_000, 0))
    # The first one and the last.
    assert capsys.readouterr().err.splitlines() == [
        "s3://b/x: 0% of 10.0 MB, 0 of 1000 segments",
        "s3://b/x: 100% of 10.0 MB, 1000 of 1000 segments",
    ]


def test_it_is_pickled_as_what_was_asked_for(cluster: Cluster, table: pa.Table) -> None:
    ds = cluster.dataset(columns=["id"])
    copy = pickle.loads(pickle.dumps(ds))
    assert copy.to_table().equals(table.select(["id"])) and copy.version == ds.version
    function, (uri, options, version, package) = ds.__reduce__()
    with pytest.raises(forebay.ChangedError, match="open it again"):
        function(uri, options, "0" * 32, package)
    # Other versions of the package may have had other options.
    options = {**options, "unheard_of": 1}
    with pytest.raises(forebay.InvalidError, match=rf"{uri} was pickled by forebay 9\.9\.9, .* the same version on both sides"):
        function(uri, options, version, "9.9.9")
    with pytest.raises(forebay.InvalidError, match="by an older version of forebay"):
        function(uri, options, version)


def test_the_environment_names_the_cache(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_ENDPOINT", cluster.endpoint)
    assert forebay.dataset(cluster.uri()).num_rows == ROWS
    assert forebay.dataset(cluster.uri(), direct=True, **cluster.store).num_rows == ROWS


RAISING = """
import builtins, logging, sys
import forebay

class Raising(logging.Handler):
    def emit(self, record):
        print(record.getMessage(), flush=True)
        raise getattr(builtins, sys.argv[1])("as a test")

logging.getLogger("forebay").addHandler(Raising())
try:
    print(forebay.dataset(sys.argv[2], endpoint=sys.argv[3]).num_rows)
except (KeyboardInterrupt, SystemExit) as e:
    print(type(e).__name__)
"""


@pytest.mark.parametrize(("kind", "ends"), [("KeyboardInterrupt", "KeyboardInterrupt"), ("SystemExit", "SystemExit"), ("ValueError", str(ROWS))])
def test_what_interrupts_a_logger_is_raised(cluster: Cluster, tmp_path: Path, kind: str, ends: str) -> None:
    """Logging is Python code, in which a signal may be handled. An error of a logger's own costs its note alone."""
    # Rust notes that others may read it.
    token = tmp_path / "token"
    token.write_text("token")
    token.chmod(0o644)
    command = [sys.executable, "-c", RAISING, kind, cluster.uri(), cluster.endpoint]
    environment = os.environ | {"FOREBAY_TOKEN_FILE": str(token)}
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60, env=environment).stdout.splitlines()
    assert "every user of this machine may read this token" in said[0] and said[-1] == ends and len(said) == 2


def test_what_was_left_out_is_told(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "forebay"):
        ds = cluster.dataset("grown")
        assert len(ds.notes) == 1 and "without bytes" in ds.notes[0] and ds.notes[0] in caplog.text
        assert ds.select(["id"]).notes == ds.notes
        forebay.Loader(ds, columns=["id"], batch_size=1)
    assert caplog.text.count(ds.notes[0]) == 1, "once, however often columns are chosen"
    assert ds.to_table().to_pydict() == {"id": [1, 2], "x": [None, 2.5]}
    assert cluster.dataset("grown", schema_of="0.parquet").columns == ["id"]


def test_rows_may_be_filtered(cluster: Cluster) -> None:
    few = cluster.dataset("grown", where="x > 2 or x is not null and id = 7")
    assert few.to_table().to_pydict() == {"id": [2], "x": [2.5]}
    assert pickle.loads(pickle.dumps(few)).version == few.version != cluster.dataset("grown").version
    with pytest.raises(forebay.InvalidError, match="did you mean 'id'"):
        cluster.dataset("grown", where="ix = 1")


def test_bad_input(cluster: Cluster) -> None:
    with pytest.raises(FileNotFoundError, match=cluster.uri("none")) as caught:
        cluster.dataset("none")
    assert isinstance(caught.value, forebay.NotFoundError)
    with pytest.raises(ValueError, match="nope"):
        cluster.dataset(columns=["nope"])
    with pytest.raises(forebay.InvalidError, match="pass a list of names"):
        cluster.dataset(columns="id")
    with pytest.raises(forebay.InvalidError, match="columns= names none"):
        cluster.dataset().select([])
    several: Any = [cluster.uri(), cluster.uri("other")]
    with pytest.raises(TypeError, match="for several objects pass a pattern, or '@FILE'"):
        forebay.dataset(several)
    with pytest.raises(TypeError, match="'endpiont'"):
        forebay.dataset(cluster.uri(), endpiont="x")
    with pytest.raises(forebay.InvalidError, match="contradict"):
        forebay.dataset(cluster.uri(), endpoint=cluster.endpoint, direct=True)
    with pytest.raises(forebay.InvalidError, match="need direct=True"):
        forebay.dataset(cluster.uri(), endpoint=cluster.endpoint, s3_region="x")
    with pytest.raises(ConnectionError, match="cannot reach the cache at http://127.0.0.1:1"):
        forebay.dataset(cluster.uri(), endpoint="127.0.0.1:1")
    with pytest.raises(forebay.InvalidError, match="no address"):
        forebay.dataset(cluster.uri(), endpoint="no address")
    with pytest.raises(IndexError, match="no row 600"):
        cluster.dataset().take([0, ROWS])
    with pytest.raises(forebay.InvalidError, match="split"):
        cluster.dataset(split="half")
    with pytest.raises(forebay.InvalidError, match="direct=True"):
        cluster.direct().load()
    with pytest.raises(PermissionError):
        forebay.dataset(cluster.uri(), direct=True, **{**cluster.store, "s3_secret_access_key": "wrong"})


def test_a_damaged_column_is_an_error_and_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [[("a", 1), ("b", 2)], [], [("c", None)]] * 5
    table = pa.table({"m": pa.array(rows, pa.map_(pa.string(), pa.int32()))})
    file = tmp_path / "0.parquet"
    pq.write_table(table, file, compression="none", use_dictionary=False, write_statistics=False)
    damaged = bytearray(file.read_bytes())
    # The first repetition level of the keys.
    damaged[30] = 35
    file.write_bytes(damaged)
    with pytest.raises(forebay.CorruptError, match="0.parquet") as told:
        forebay.dataset(tmp_path.as_uri(), direct=True).to_table()
    assert "unwrap" not in str(told.value)
    assert "panicked" not in capfd.readouterr().err
