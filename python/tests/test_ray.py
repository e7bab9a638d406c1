"""Ray Train runs the loader, and Ray Data reads datasets. `make test-readers` installs Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import Cluster, needs
from test_examples import EXAMPLES

pytestmark = pytest.mark.readers


def trained(cluster: Cluster, *arguments: object) -> str:
    """Runs the example; its last line."""
    command = [sys.executable, str(EXAMPLES / "ray_train.py"), cluster.uri("mnist"), *map(str, arguments)]
    settings = {"FOREBAY_ENDPOINT": cluster.endpoint, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    run = subprocess.run(command, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True, check=True, timeout=240)
    return run.stdout.strip().splitlines()[-1]


def test_ray_train_resumed_is_as_if_never_stopped(cluster: Cluster, tmp_path: Path) -> None:
    straight = trained(cluster, tmp_path / "straight")
    assert straight.startswith("epoch 2, 39 steps left, loss ")
    assert trained(cluster, tmp_path / "stopped", 10).startswith("epoch 0, 29 steps left, loss ")
    assert trained(cluster, tmp_path / "stopped") == straight


@pytest.fixture(scope="module", name="ray")
def local_ray() -> Iterator[Any]:
    module = needs("ray")
    module.init(num_cpus=2, include_dashboard=False)
    yield module
    module.shutdown()


def test_ray_data_reads_each_row_once(cluster: Cluster, table: pa.Table, ray: Any) -> None:
    import forebay.ray

    source = forebay.ray.Datasource(cluster.dataset(columns=["id", "x", "name", "age"]))
    rows = ray.data.read_datasource(source, override_num_blocks=5)
    assert rows.count() == 600
    found = sorted(rows.take_all(), key=lambda row: int(row["id"]))
    assert found == table.select(["id", "x", "name", "age"]).to_pylist()
    assert sorted(row["id"] for row in rows.limit(7).take_all()) == list(range(7))
    mapped = rows.map_batches(lambda batch: {"double": batch["id"] * 2}).sum("double")
    assert mapped == 600 * 599
