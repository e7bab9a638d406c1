"""accelerate: `prepare` gets the model and the optimizer, the loader stays as it is.

    accelerate launch --num-processes 2 accelerate_loop.py URI CHECKPOINT [STEPS]

Trains on the columns `image` and `label` of the dataset at URI, read through the cache at $FOREBAY_ENDPOINT. With STEPS the
run stops after that number; started again, on any number of processes, it goes on with the very next batch.
"""

import sys
from pathlib import Path
from typing import Any

import accelerate
import torch

import forebay.torch

EPOCHS = 2


def main(uri: str, checkpoint: str, steps: int | None) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(28 * 28, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    # Rank and number of ranks come from torch.distributed, which the Accelerator has initialised.
    loader: Any = forebay.torch.Loader(uri, global_batch=256, seed=1, columns=["image", "label"])
    model, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), lr=0.1))
    # Has its state in what accelerate saves and loads.
    accelerator.register_for_checkpointing(loader)
    if Path(checkpoint).exists():
        accelerator.load_state(checkpoint)

    loss = torch.zeros(())
    while loader.epoch < EPOCHS and steps != 0:
        for batch in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(batch["image"].float() / 255), batch["label"])
            accelerator.backward(loss)
            optimizer.step()
            if steps is not None and (steps := steps - 1) == 0:
                break

    accelerator.save_state(checkpoint, safe_serialization=False)
    accelerator.print(f"epoch {loader.epoch}, {loader.steps_left} steps left, loss {loss:.6f}")
    accelerator.end_training()


main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
