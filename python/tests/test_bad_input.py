"""Data and calls that cannot be: what each is told, and that nothing is left behind by any of them."""

from __future__ import annotations

import gc
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import BIN, Cluster, needs
from test_loader import Hold
from test_versions import connect

import forebay

torch = needs("torch")

import forebay.torch

SETTINGS: dict[str, Any] = {"batch_size": 4, "shuffle": None, "epochs": 1}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> forebay.Dataset:
    """Columns of which no tensors can be made."""
    folder = tmp_path_factory.mktemp("odd")
    tensor = pa.fixed_shape_tensor(pa.int32(), [2])
    holes = pa.array([[1, None], None, [None, None], [4, 5]], pa.list_(pa.int32(), 2))
    columns = {
        "price": pa.array([Decimal("1.50")] * 4),
        "map": pa.array([[("a", 1)]] * 4, pa.map_(pa.string(), pa.int32())),
        "words": pa.array([["a"], [], ["b", "c"], ["d"]]),
        "deep": pa.array([[[1]], [], [[2], [3]], [[4]]]),
        "gaps": pa.array([[1, None], [2], [], [None, None]], pa.list_(pa.int64())),
        "holes": holes,
        "pairs": pa.array([[[1, None]], [], [[2, 3]], []], pa.list_(pa.list_(pa.int32(), 2))),
        "place": pa.array([{"gaps": [1, None]}, {"gaps": []}, {"gaps": [2]}, {"gaps": [3]}]),
        "tensor": pa.ExtensionArray.from_storage(tensor, holes),
    }
    pq.write_table(pa.table(columns), folder / "0.parquet")
    return forebay.dataset(folder, direct=True)


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ("price", r"column 'price' of type Decimal\S+ \S* ?has no form as a tensor: leave it out by columns="),
        ("map", r"column 'map' of type Map\(.*\) has no form as a tensor: leave it out by columns="),
        ("words", r"column 'words' of type List\(Utf8.*\) holds lists that are no tensors: leave it out by columns="),
        ("deep", r"column 'deep' of type List\(List.*\) holds lists that are no tensors: leave it out by columns="),
        ("gaps", r"column 'gaps' has \d+ nulls within its lists in this batch, .* nulls= stands for whole lists only: leave it out"),
        ("place", "column 'place.gaps' has 1 nulls within its lists"),
        ("holes", "column `holes` .*: has nulls within its lists, for which a tensor has no place: leave it out by columns="),
        ("pairs", "column `pairs.item` .*: has nulls within its lists, for which a tensor has no place: leave it out"),
        ("tensor", "column `tensor` .*: has nulls within its lists, for which a tensor has no place: leave it out"),
    ],
)
@pytest.mark.parametrize("ragged", ["list", "pad", "raw"])
def test_columns_that_are_no_tensors(odd: forebay.Dataset, column: str, told: str, ragged: Any) -> None:
    rules = {column: 0} if column in ("holes", "tensor") else None
    loader = forebay.torch.Loader(odd, columns=[column], ragged=ragged, nulls=rules, **SETTINGS)
    with pytest.raises(forebay.InvalidError, match=told + ".*or read it with forebay.Loader$"):
        next(iter(loader))
    assert next(iter(forebay.Loader(odd, columns=[column], **SETTINGS))).keys() == [column]
    rows = forebay.torch.MapDataset(odd, columns=[column], ragged=ragged, nulls=rules)
    with pytest.raises(forebay.InvalidError, match=told):
        rows[0]


def test_nulls_within_lists_by_dlpack(odd: forebay.Dataset) -> None:
    numpy = needs("numpy")
    batch = next(iter(forebay.Loader(odd, **SETTINGS)))
    for column in [batch["holes"], batch["pairs"].items()[0], batch["tensor"]]:
        for take in [numpy.from_dlpack, torch.from_dlpack]:
            with pytest.raises(BufferError, match="has nulls within its lists, for which a tensor has no place"):
                take(column)
    # Where nulls stand in rows only, their values are arbitrary.
    assert torch.from_dlpack(batch["gaps"].items()[0]).shape == (5,)


def held() -> tuple[int, int, int]:
    """Threads, open files and shared mappings of this process."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    shared = sum(line.split()[1][3] == "s" for line in maps)
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), shared


def epoch(cluster: Cluster, **options: Any) -> None:
    with forebay.torch.Loader(cluster.dataset(), **{"batch_size": 48, **options}) as loader:
        list(loader)


def no_form(odd: forebay.Dataset, name: str) -> None:
    # Not closed, as in a program that meets the error and drops the loader.
    next(iter(forebay.torch.Loader(odd, columns=[name], ragged="list", transform=len, **SETTINGS)))


def raising(batch: forebay.torch.Batch) -> int:
    if batch.step == 2:
        raise ZeroDivisionError("no such thing")
    return batch.step


def wrong_state(cluster: Cluster) -> None:
    with forebay.torch.Loader(cluster.dataset(), batch_size=48, columns=["id"], transform=len) as loader:
        batches = iter(loader)
        next(batches)
        loader.load_state_dict({**loader.state_dict(), "state": "no digits"})


def state_of_another(cluster: Cluster) -> None:
    with forebay.Loader(cluster.dataset("other"), batch_size=48) as loader:
        state = loader.state_dict()
    with forebay.Loader(cluster.dataset(), batch_size=48) as loader:
        next(iter(loader))
        loader.load_state_dict(state)


def later_state(cluster: Cluster) -> None:
    with forebay.Loader(cluster.dataset(), batch_size=48) as loader:
        next(iter(loader))
        loader.load_state_dict({**loader.state_dict(), "forebay": 2})


def pickled_by_another_version(cluster: Cluster) -> None:
    function, (uri, options, version, _) = cluster.dataset().__reduce__()
    function(uri, options, version, "9.9.9")


def later_node(cluster: Cluster) -> None:
    node = cluster.endpoint.split(",")[0]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=connect, args=[listener, node, "node"], daemon=True).start()
        forebay.dataset(cluster.uri(), endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}")


def no_right_to_start_a_node() -> None:
    with tempfile.TemporaryDirectory(prefix="forebay-") as root:
        places = {"FOREBAY_RUNTIME_DIR": f"{root}/run", "FOREBAY_SERVER": str(BIN / "forebay-server")}
        with mock.patch.dict(os.environ, places):
            forebay.local_node(cache_dir="/dev/null/cache")


def closed(cluster: Cluster) -> None:
    loader = forebay.torch.Loader(cluster.dataset(), batch_size=48, columns=["id"], transform=len)
    batches = iter(loader)
    next(batches)
    loader.close()
    next(batches)


def two_iterations(cluster: Cluster) -> None:
    loader = forebay.torch.Loader(cluster.dataset(), batch_size=48, columns=["id"], transform=len)
    first, second = iter(loader), iter(loader)
    next(second)
    next(first)


def two_threads(cluster: Cluster) -> None:
    loader, hold = forebay.Loader(cluster.dataset(), batch_size=48, columns=["id"]), Hold(1)
    batches = iter(loader)
    reading = hold.reading(loader, batches)
    try:
        next(batches)
    finally:
        loader.close()
        hold.go.set()
        reading.join(10)


BAD: dict[str, tuple[type[BaseException], Callable[[Cluster, forebay.Dataset], object]]] = {
    "a type without a form": (forebay.InvalidError, lambda cluster, odd: no_form(odd, "price")),
    "nulls within lists": (forebay.InvalidError, lambda cluster, odd: no_form(odd, "gaps")),
    "nulls": (forebay.InvalidError, lambda cluster, odd: epoch(cluster, columns=["age"])),
    "lists without a rule": (forebay.InvalidError, lambda cluster, odd: epoch(cluster, columns=["tags"])),
    "a transform that raises": (ZeroDivisionError, lambda cluster, odd: epoch(cluster, columns=["id"], transform=raising)),
    "a state that is none": (forebay.CorruptError, lambda cluster, odd: wrong_state(cluster)),
    "a state of another dataset": (forebay.ChangedError, lambda cluster, odd: state_of_another(cluster)),
    "a state of a later version": (forebay.InvalidError, lambda cluster, odd: later_state(cluster)),
    "a dataset that another version pickled": (forebay.InvalidError, lambda cluster, odd: pickled_by_another_version(cluster)),
    "a node of a later version": (forebay.InvalidError, lambda cluster, odd: later_node(cluster)),
    "no right to start a node": (forebay.DeniedError, lambda cluster, odd: no_right_to_start_a_node()),
    "a batch that ranks cannot share": (
        forebay.InvalidError,
        lambda cluster, odd: epoch(cluster, batch_size=None, global_batch=100, rank=0, world=3),
    ),
    "a closed loader": (forebay.ClosedError, lambda cluster, odd: closed(cluster)),
    "two iterations": (forebay.ClosedError, lambda cluster, odd: two_iterations(cluster)),
    "two threads": (forebay.InvalidError, lambda cluster, odd: two_threads(cluster)),
}
TIMES = 6


@pytest.mark.parametrize("name", BAD)
def test_nothing_is_left_behind(cluster: Cluster, odd: forebay.Dataset, name: str) -> None:
    """No thread, open file or shared mapping. What the process keeps for all loaders comes and goes by a few."""
    error, attempt = BAD[name]

    def attempts(times: int) -> None:
        for _ in range(times):
            with pytest.raises(error):
                attempt(cluster, odd)
            gc.collect()

    def is_within(after: tuple[int, ...]) -> bool:
        return all(now < was + TIMES // 2 for now, was in zip(after, before, strict=True))

    epoch(cluster, columns=["id"])
    attempts(2)
    before = held()
    attempts(TIMES)
    # Threads that have nothing to do end after 10 s.
    until = time.monotonic() + 20
    while not is_within(after := held()) and time.monotonic() < until:
        time.sleep(0.1)
    assert is_within(after), (before, after)
