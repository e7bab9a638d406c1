"""Data-parallel training that goes on where it was stopped.

    torchrun --nproc-per-node 2 ddp.py URI CHECKPOINT [STEPS]

Trains on the columns `image` and `label` of the dataset at URI, read through the cache at $FOREBAY_ENDPOINT. The
checkpoint holds model, optimizer and the loader's state. With STEPS the run stops after that number, as a job does whose
time is over; started again, on any number of ranks, it goes on with the very next batch.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import forebay.torch

EPOCHS = 2


def main(uri: str, checkpoint: str, steps: int | None) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(28 * 28, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    # Rank and number of ranks come from torch.distributed.
    loader = forebay.torch.Loader(uri, global_batch=256, seed=1, columns=["image", "label"])
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"])

    loss = torch.zeros(())
    while loader.epoch < EPOCHS and steps != 0:
        for batch in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(batch["image"].float() / 255), batch["label"])
            loss.backward()
            optimizer.step()
            if steps is not None and (steps := steps - 1) == 0:
                break

    if dist.get_rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": loader.state_dict()}
        torch.save(state, checkpoint + ".partial")
        os.replace(checkpoint + ".partial", checkpoint)
        print(f"epoch {loader.epoch}, {loader.steps_left} steps left, loss {loss:.6f}")
    # Its group must outlive it, or the group's threads may wait for this one for ever (pytorch/pytorch#56297).
    del model
    dist.destroy_process_group()


main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
