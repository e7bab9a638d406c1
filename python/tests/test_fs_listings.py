"""Listings through fsspec: complete or an error, and what they find is what a disk has; fsspec's own tests of reading."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec.tests.abstract as abstract
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from conftest import Cluster, rows
from fsspec.implementations.local import LocalFileSystem
from fsspec.tests.abstract.common import GLOB_EDGE_CASES_TESTS

# pytest finds the fixtures by their names here.
from test_fs import files, fs, node, the_store, write

import forebay
from forebay import _forebay
from forebay.fs import ForebayFileSystem


class OneRefused:
    """The objects of a filesystem, but one of the listings is refused."""

    def __init__(self, objects: _forebay.Objects, uri: str, error: Exception) -> None:
        self.objects, self.uri, self.error = objects, uri, error
        self.listed: list[str] = []

    def list(self, uri: str, recursive: bool, token: str) -> Any:
        self.listed.append(uri)
        if uri == self.uri:
            raise self.error
        return self.objects.list(uri, recursive, token)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.objects, name)


@pytest.mark.parametrize("kind", [forebay.DeniedError, forebay.RetryError])
def test_no_partition_is_left_out(
    files: ForebayFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[forebay.DeniedError | forebay.RetryError]
) -> None:
    """A listing that fails is an error, never a dataset with fewer rows."""
    error = kind("refused")
    for part in range(3):
        (tmp_path / f"part={part}").mkdir()
        pq.write_table(rows(part * 10, 10), tmp_path / f"part={part}/0.parquet")
    root, folders = str(tmp_path), [f"{tmp_path}/part={part}" for part in range(3)]
    objects = OneRefused(files._objects, f"file://{folders[1]}", error)
    monkeypatch.setattr(files, "_objects", objects)
    parts = [f"{folder}/0.parquet" for folder in folders]
    assert files.find(root, withdirs=True) == sorted([root, *folders, *parts]) and objects.listed == [f"file://{root}"]
    assert files.find(root) == parts == files.glob(f"{root}/**/*.parquet")
    assert ds.dataset(root, filesystem=files, partitioning="hive").count_rows() == 30
    refused: list[Any] = [
        lambda: files.find(root, maxdepth=2),
        lambda: files.find(root, maxdepth=2, withdirs=True),
        lambda: files.glob(f"{root}/*/*.parquet"),
        lambda: list(files.walk(root)),
        lambda: list(files.walk(root, topdown=False, detail=True)),
        lambda: list(files.walk(root, on_error="raise")),
        lambda: files.isdir(folders[1]),
        lambda: files.isfile(folders[1]),
    ]
    told: list[OSError] = []
    on_errors: list[Any] = ["omit", told.append]
    for on_error in on_errors:
        walked = [folder for folder, _, _ in files.walk(root, on_error=on_error)]
        assert walked == [root, folders[0], folders[2]]
    assert told == [error] and list(files.walk(f"{root}/nothing")) == [] == files.find(f"{root}/nothing", withdirs=True)
    for ask in refused:
        with pytest.raises(kind):
            ask()
    objects.uri = f"file://{root}"
    refused = [
        lambda: files.find(root),
        lambda: files.find(root, withdirs=True),
        lambda: files.glob(f"{root}/*"),
        lambda: ds.dataset(root, filesystem=files, partitioning="hive"),
    ]
    for ask in refused:
        with pytest.raises(kind):
            ask()


def test_an_object_may_have_a_directory_s_name(cluster: Cluster, fs: ForebayFileSystem) -> None:
    root = f"{cluster.bucket}/twins"
    for name in ["a", "a/b", "c/d"]:
        write(cluster, f"{root}/{name}", name.encode())
    for depth in [None, 2]:
        found = fs.find(root, maxdepth=depth, withdirs=True, detail=True)
        kinds = {name.removeprefix(root): entry["type"] for name, entry in found.items()}
        assert kinds == {"": "directory", "/a": "file", "/a/b": "file", "/c": "directory", "/c/d": "file"}
    assert fs.find(root, maxdepth=1) == [f"{root}/a"] and fs.cat(root, recursive=True).keys() == set(fs.find(root))
    assert [(len(folders), len(names)) for _, folders, names in fs.walk(root)] == [(2, 1), (0, 1), (0, 1)]


def test_marks_of_directories_are_no_objects(cluster: Cluster, fs: ForebayFileSystem, table: pa.Table) -> None:
    """Consoles and other tools leave empty objects whose keys end with a slash."""
    root = f"{cluster.bucket}/marked"
    store = the_store(cluster)
    for folder in ["part=1", "part=2", "empty"]:
        store.create_dir(f"{root}/{folder}", recursive=True)
    for part in [1, 2]:
        with store.open_output_stream(f"{root}/part={part}/0.parquet") as out:
            pq.write_table(table.slice(part * 10, 10), out)
    write(cluster, f"{root}/_SUCCESS", b"")
    objects = [f"{root}/_SUCCESS", f"{root}/part=1/0.parquet", f"{root}/part=2/0.parquet"]
    folders = [root, f"{root}/empty", f"{root}/part=1", f"{root}/part=2"]
    for depth in [None, 2]:
        assert fs.find(root, depth) == objects and fs.find(root, depth, withdirs=True) == sorted(objects + folders)
    assert fs.cat(root, recursive=True).keys() == set(objects)
    assert fs.ls(f"{root}/empty") == [] and len(list(fs.walk(root, on_error="raise"))) == len(folders)
    assert ds.dataset(root, filesystem=fs, partitioning="hive").count_rows() == 20


def test_links_keep_the_name_that_was_asked_for(files: ForebayFileSystem, tmp_path: Path) -> None:
    (tmp_path / "there/in").mkdir(parents=True)
    (tmp_path / "there/in/a").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    link = f"{tmp_path}/link"
    assert files.find(link, withdirs=True) == [link, f"{link}/in", f"{link}/in/a"]
    assert files.glob(f"{link}/*/a") == [f"{link}/in/a"] and files.ls(f"{link}/in/a", detail=False) == [f"{link}/in/a"]


@pytest.fixture(scope="module")
def globbed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What fsspec's cases of patterns are about, in a folder and in the object store."""
    folder = tmp_path_factory.mktemp("globs").resolve()
    abstract.AbstractFixtures()._glob_edge_cases_files(LocalFileSystem(auto_mkdir=True), os.path.join, str(folder))
    for path in (folder / "source").rglob("*"):
        if path.is_file():
            write(cluster, f"{cluster.bucket}/globs/{path.relative_to(folder)}", b"")
    return folder


@pytest.mark.parametrize(**GLOB_EDGE_CASES_TESTS)
def test_patterns_find_what_they_find_on_a_disk(
    cluster: Cluster,
    fs: ForebayFileSystem,
    files: ForebayFileSystem,
    globbed: Path,
    path: str,
    recursive: bool,
    maxdepth: int | None,
    expected: list[str],
) -> None:
    """fsspec's cases; what it expects of them is of copies, which are flatter where directories are copied."""

    def found(some: Any, root: str, pattern: str) -> tuple[dict[str, str], list[str]]:
        """What the pattern finds with the kind of each, and what `get` would copy of it."""
        kinds = some.glob(f"{root}/{pattern}", maxdepth=maxdepth, detail=True)
        try:
            names = some.expand_path(f"{root}/{pattern}", recursive=recursive, maxdepth=maxdepth)
        except FileNotFoundError:
            names = []
        stripped = root.removeprefix("s3://")
        return {name.removeprefix(stripped): entry["type"] for name, entry in kinds.items()}, [n.removeprefix(stripped) for n in names]

    for pattern, scheme in [(path, ""), (f"{path}/", "s3://"), (f"{path}/**", ""), (f"**/{path}", "s3://")]:
        on_disk = found(LocalFileSystem(), f"{globbed}/source", pattern)
        assert found(files, f"{globbed}/source", pattern) == on_disk
        assert found(fs, f"{scheme}{cluster.bucket}/globs/source", pattern) == on_disk
    kinds, _ = found(fs, f"{cluster.bucket}/globs/source", path)
    assert recursive or [name for name, kind in kinds.items() if kind == "file"] == sorted(f"/{name}" for name in expected)


def test_walks_as_on_a_disk(files: ForebayFileSystem, globbed: Path) -> None:
    disk, root = LocalFileSystem(), f"{globbed}/source"
    for depth in [None, 1, 2]:
        for topdown in [True, False]:
            walked = [
                [(folder, sorted(folders), sorted(names)) for folder, folders, names in some.walk(root, depth, topdown)]
                for some in (files, disk)
            ]
            assert sorted(walked[0]) == sorted(walked[1]) and walked[0][0 if topdown else -1][0] == root
        for withdirs in [True, False]:
            assert files.find(root, depth, withdirs) == disk.find(root, depth, withdirs)
    pruned = []
    for folder, folders, _ in files.walk(root):
        pruned.append(folder)
        folders[:] = [name for name in folders if name != "subdir0"]
    assert f"{root}/subdir1/nesteddir" in pruned and f"{root}/subdir0" not in pruned
    for wrong in [files.find, files.glob]:
        with pytest.raises(ValueError, match="maxdepth must be at least 1"):
            wrong(root, 0)
    with pytest.raises(ValueError, match="maxdepth must be at least 1"):
        list(files.walk(root, 0))


class TestGet(abstract.AbstractFixtures, abstract.AbstractGetTests):  # type: ignore[misc]
    """fsspec's own tests of reading. What they read is written to the object store, beside the filesystem."""

    @pytest.fixture
    def fs(self, files: ForebayFileSystem) -> ForebayFileSystem:
        return files

    @pytest.fixture
    def fs_path(self, tmp_path: Path) -> str:
        return str(tmp_path / "store")

    @pytest.fixture
    def fs_bulk_operations_scenario_0(self, local_fs: Any, fs_join: Any, fs_path: str) -> Any:
        return self._bulk_operations_scenario_0(local_fs, fs_join, fs_path)

    @pytest.fixture
    def fs_glob_edge_cases_files(self, local_fs: Any, fs_join: Any, fs_path: str) -> Any:
        return self._glob_edge_cases_files(local_fs, fs_join, fs_path)

    @pytest.fixture
    def fs_dir_and_file_with_same_name_prefix(self, local_fs: Any, fs_join: Any, fs_path: str) -> Any:
        return self._dir_and_file_with_same_name_prefix(local_fs, fs_join, fs_path)

    @pytest.fixture
    def fs_10_files_with_hashed_names(self, local_fs: Any, fs_join: Any, fs_path: str) -> Any:
        return self._10_files_with_hashed_names(local_fs, fs_join, fs_path)

    def test_get_directory_recursive(
        self, fs: Any, fs_join: Any, fs_path: str, local_fs: Any, local_join: Any, local_target: Any, monkeypatch: Any
    ) -> None:
        """The one that writes by itself."""
        for name in ["mkdir", "touch"]:
            monkeypatch.setattr(fs, name, getattr(local_fs, name))
        super().test_get_directory_recursive(fs, fs_join, fs_path, local_fs, local_join, local_target)
