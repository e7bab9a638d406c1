"""`torch.nn.DataParallel`: one process trains on all GPUs of this machine, and goes on where it was stopped.

    data_parallel.py URI CHECKPOINT [STEPS]

Trains on the columns `image` and `label` of the dataset at URI, read through the cache at $FOREBAY_ENDPOINT.
There is one process, so there is one loader: its batches are those of all GPUs together, and the module splits
them. Without a GPU the network runs as it is. With STEPS the run stops after that number; started again, with
any number of GPUs, it goes on with the very next batch.
"""

import os
import sys

import torch

import forebay.torch

EPOCHS = 2


def main(uri: str, checkpoint: str, steps: int | None) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(28 * 28, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)).to(device)
    model = torch.nn.DataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    loader = forebay.torch.Loader(uri, batch_size=256, seed=1, columns=["image", "label"], device=device)
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, weights_only=True, map_location=device)
        network.load_state_dict(saved["model"])
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

    state = {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "data": loader.state_dict()}
    torch.save(state, checkpoint + ".partial")
    os.replace(checkpoint + ".partial", checkpoint)
    print(f"epoch {loader.epoch}, {loader.steps_left} steps left, loss {loss:.6f}")
    loader.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
