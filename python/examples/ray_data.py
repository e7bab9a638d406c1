"""Ray Data: statistics of a dataset, computed by tasks that read it through the cache.

    ray_data.py URI

Prints how many rows of the dataset at URI, read through the cache at $FOREBAY_ENDPOINT, have each value of the column
`label`, and the mean of the column `image` over all of them.
"""

import os
import sys
from typing import Any

import numpy as np
import ray

import forebay
import forebay.ray


def means(batch: dict[str, Any]) -> dict[str, Any]:
    """The columns as numpy arrays; the images are lists of pixels."""
    return {"label": batch["label"], "mean": np.stack(batch["image"]).mean(axis=1)}


def main(uri: str) -> None:
    ray.init(num_cpus=2, runtime_env={"env_vars": {"FOREBAY_ENDPOINT": os.environ["FOREBAY_ENDPOINT"]}}, include_dashboard=False)
    # Each task opens this version of the dataset again: all machines of Ray's cluster must reach the cache.
    rows = ray.data.read_datasource(forebay.ray.Datasource(forebay.dataset(uri, columns=["label", "image"])))
    rows = rows.map_batches(means).materialize()
    counts = {int(row["label"]): row["count()"] for row in rows.groupby("label").count().take_all()}
    print(f"rows {dict(sorted(counts.items()))}, mean {rows.mean('mean'):.6f}")


main(sys.argv[1])
