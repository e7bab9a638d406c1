"""torchdata's StatefulDataLoader over Forebay: in its own process, in workers, and with a sampler.

    stateful_dataloader.py URI CHECKPOINT WAY [STEPS]

WAY is `here`, `workers` or `sampler`. Reads two epochs of the column `label` of the dataset at URI, through the cache at
$FOREBAY_ENDPOINT, and prints a checksum of all batches in their order. With STEPS the run stops after that number; started
again, it goes on with the very next batch.
"""

import os
import sys
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import forebay.torch

EPOCHS = 2


def loader_of(uri: str, way: str) -> tuple[Any, Any]:
    """The DataLoader, and what chooses its epoch."""
    options: Any = {"batch_size": 250, "seed": 1}
    if way == "sampler":
        # The numbers of the rows come from Forebay's order, and the rows by their numbers, as with any sampler.
        rows = forebay.torch.MapDataset(uri, columns=["label"])
        sampler = forebay.torch.Sampler(rows.data, **options)
        return StatefulDataLoader(rows, batch_sampler=sampler, collate_fn=rows.collate), sampler
    data = forebay.torch.IterableDataset(uri, columns=["label"], **options)
    if way == "here":
        return StatefulDataLoader(data, batch_size=None), data
    # The start method must not be fork, and each epoch must be said.
    return StatefulDataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="forkserver"), data


def main(uri: str, checkpoint: str, way: str, steps: int | None) -> None:
    loader, epochs = loader_of(uri, way)
    epoch, checksum = 0, 0
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, weights_only=False)
        epoch, checksum = saved["epoch"], saved["checksum"]
        loader.load_state_dict(saved["data"])
    for epoch in range(epoch, EPOCHS):
        epochs.set_epoch(epoch)
        for batch in loader:
            weights = torch.arange(1, len(batch["label"]) + 1)
            checksum = (31 * checksum + int(weights @ batch["label"].long())) % (1 << 61)
            if steps is not None and (steps := steps - 1) == 0:
                torch.save({"data": loader.state_dict(), "epoch": epoch, "checksum": checksum}, checkpoint)
                return
    print(f"checksum {checksum}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else None)
