"""Ray Train runs the loader, and Ray Data reads datasets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Cluster, needs
from test_examples import EXAMPLES, alone

needs("torch")


@pytest.fixture(autouse=True, scope="module")
def nothing_is_reported() -> Iterator[None]:
    """Ray would tell its makers of each run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield


def trained(cluster: Cluster, *arguments: object) -> str:
    """Runs the example; its last line."""
    command = [sys.executable, str(EXAMPLES / "ray_train.py"), cluster.uri("mnist"), *map(str, arguments)]
    return last_line(cluster, command)


def last_line(cluster: Cluster, command: list[str]) -> str:
    settings = {"FOREBAY_ENDPOINT": cluster.endpoint, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True, check=True, timeout=240)
    return run.stdout.strip().splitlines()[-1]


def test_ray_train_resumed_is_as_if_never_stopped(cluster: Cluster, tmp_path: Path) -> None:
    straight = trained(cluster, tmp_path / "straight")
    assert straight.startswith("epoch 2, 39 steps left, loss ")
    assert trained(cluster, tmp_path / "stopped", 10).startswith("epoch 0, 29 steps left, loss ")
    assert trained(cluster, tmp_path / "stopped") == straight


def test_ray_data_computes_statistics(cluster: Cluster, data: Path) -> None:
    said = alone(cluster, "ray_data.py").splitlines()[-1]
    table = pq.read_table(data / "mnist")
    labels = table["label"].to_pylist()
    counts = {label: labels.count(label) for label in sorted(set(labels))}
    mean = sum(map(sum, table["image"].to_pylist())) / (len(table) * 784)
    assert said == f"rows {counts}, mean {mean:.6f}"


# Within Ray Train: two workers note the rows, the values and the state after each step; one worker goes on from each state.
ROWS_AND_STATES = """
import json, os, sys
import ray.train, ray.train.torch

def train(config):
    import forebay.torch

    def loader():
        data = forebay.dataset(config["uri"], columns=["id", "x"])
        return forebay.torch.Loader(data, global_batch=96, seed=3, shuffle=2, epochs=1)
    said = []
    for state in config["states"]:
        batches = loader()
        if state is not None:
            batches.load_state_dict(state)
        said.append([[batch["id"].tolist(), batch["x"].tolist(), batches.state_dict()] for batch in batches])
    rank = ray.train.get_context().get_world_rank()
    with open(os.path.join(config["folder"], f"{config['world']}-{rank}"), "w") as file:
        json.dump(said, file)

def run(uri, folder, world, states):
    config = {"uri": uri, "folder": folder, "world": world, "states": states}
    ray.train.torch.TorchTrainer(
        train,
        train_loop_config=config,
        scaling_config=ray.train.ScalingConfig(num_workers=world),
        run_config=ray.train.RunConfig(name=f"of-{world}", storage_path=folder),
        torch_config=ray.train.torch.TorchConfig(backend="gloo"),
    ).fit()
    return [json.load(open(os.path.join(folder, f"{world}-{rank}"))) for rank in range(world)]

uri, folder = sys.argv[1:]
ray.init(num_cpus=3, runtime_env={"env_vars": {"FOREBAY_ENDPOINT": os.environ["FOREBAY_ENDPOINT"]}}, include_dashboard=False)
two = run(uri, folder, 2, [None])

def rows(*ranks):
    for ids, values, _ in ranks:
        assert values == [i / 4 for i in ids], ids
    return sorted(i for ids, _, _ in ranks for i in ids)
whole = [rows(left, right) for left, right in zip(two[0][0], two[1][0], strict=True)]
(one,) = run(uri, folder, 1, [state for _, _, state in two[0][0][:-1]])
for step, rest in enumerate(one, start=1):
    assert [rows(batch) for batch in rest] == whole[step:], step
print(f"{len(whole)} steps, {len(one)} resumed")
"""


def test_ray_train_resumed_at_every_step_on_another_number_of_workers(cluster: Cluster, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ROWS_AND_STATES, cluster.uri(), str(tmp_path)]
    assert last_line(cluster, command) == "6 steps, 5 resumed"


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
    tasks = source.get_read_tasks(3, per_task_row_limit=7)
    assert [task.metadata.num_rows for task in tasks] == [7, 7, 7]
    mapped = rows.map_batches(lambda batch: {"double": batch["id"] * 2}).sum("double")
    assert mapped == 600 * 599
