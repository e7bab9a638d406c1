"""Grain: the loader as the source of a pipeline, which goes on where it was stopped.

    grain_pipeline.py URI CHECKPOINT [STEPS]

Counts the ink of each digit in two epochs of the columns `image` and `label` of the dataset at URI, read through the cache
at $FOREBAY_ENDPOINT as numpy arrays: neither torch nor JAX is needed. With STEPS the run stops after that number; started
again, it goes on with the very next batch.
"""

import json
import os
import sys
from typing import Any

import grain
import numpy as np

import forebay
import forebay.grain

EPOCHS = 2

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def arrays(batch: forebay.Batch) -> Arrays:
    """Views of the loader's memory, which belongs to this batch."""
    return np.from_dlpack(batch["image"]), np.from_dlpack(batch["label"])


def ink(batch: Arrays) -> np.ndarray[Any, Any]:
    image, label = batch
    return np.bincount(label, weights=image.sum(axis=1, dtype=np.float64), minlength=10)


def main(uri: str, checkpoint: str, steps: int | None) -> None:
    source: Any = forebay.Loader(uri, batch_size=256, seed=1, columns=["image", "label"], transform=arrays)
    pipeline = forebay.grain.IterDataset(source).map(ink)
    batches = iter(grain.experimental.ThreadPrefetchIterDataset(pipeline, prefetch_buffer_size=2))
    epoch, checksum, total = 0, 0, np.zeros(10)
    if os.path.exists(checkpoint):
        with open(checkpoint) as file:
            saved = json.load(file)
        epoch, checksum, total = saved["epoch"], saved["checksum"], np.array(saved["total"])
        batches.set_state(saved["data"])

    while epoch < EPOCHS and steps != 0:
        for inks in batches:
            total += inks
            # Depends on the order of the batches, too.
            checksum = (31 * checksum + int(inks @ np.arange(1, 11))) % (1 << 61)
            if steps is not None and (steps := steps - 1) == 0:
                break
        else:
            epoch, batches = epoch + 1, iter(grain.experimental.ThreadPrefetchIterDataset(pipeline, prefetch_buffer_size=2))

    with open(checkpoint, "w") as file:
        json.dump({"epoch": epoch, "checksum": checksum, "total": total.tolist(), "data": batches.get_state()}, file)
    print(f"epoch {epoch}, checksum {checksum}, ink {total.astype(int).tolist()}")


main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
