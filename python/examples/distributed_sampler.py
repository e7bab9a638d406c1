"""torch's own DataLoader and DistributedSampler over rows by their numbers.

    torchrun --nproc-per-node 2 distributed_sampler.py URI CHECKPOINT [STEPS]

Trains on the columns `image` and `label` of the dataset at URI, read through the cache at $FOREBAY_ENDPOINT, in torch's
order. With STEPS the run stops after that number; started again, on any number of ranks, it goes on with the very next
batch. Rows by their numbers cost more than a loader's: see ddp.py.
"""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import forebay.torch

EPOCHS, GLOBAL_BATCH = 2, 256


def main(uri: str, checkpoint: str, steps: int | None) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(28 * 28, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = forebay.torch.MapDataset(uri, columns=["image", "label"])
    sampler: Any = DistributedSampler(rows, seed=1)
    batch_size, epoch, step = GLOBAL_BATCH // dist.get_world_size(), 0, 0
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        epoch, step = saved["epoch"], saved["step"]

    loss = torch.zeros(())
    while epoch < EPOCHS and steps != 0:
        sampler.set_epoch(epoch)
        # The sampler keeps no place, but its numbers can be skipped: nothing is read for that.
        left: Any = list(sampler)[step * batch_size :]
        for batch in DataLoader(rows, batch_size, sampler=left, collate_fn=rows.collate, drop_last=True):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(batch["image"].float() / 255), batch["label"])
            loss.backward()
            optimizer.step()
            step += 1
            if steps is not None and (steps := steps - 1) == 0:
                break
        else:
            epoch, step = epoch + 1, 0

    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "epoch": epoch, "step": step}, checkpoint)
        print(f"epoch {epoch}, step {step}, loss {loss:.6f}")
    # Its group must outlive it, or the group's threads may wait for this one for ever (pytorch/pytorch#56297).
    del model
    dist.destroy_process_group()


main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
