"""torchdata.nodes: the loader as the source of a graph of nodes, which goes on where it was stopped.

    torchdata_nodes.py URI CHECKPOINT [STEPS]

Trains on the columns `image` and `label` of the dataset at URI, read through the cache at $FOREBAY_ENDPOINT. With STEPS the
run stops after that number; started again, it goes on with the very next batch, whatever the nodes had read ahead.
"""

import os
import sys
from typing import Any

import torch
from torchdata import nodes

import forebay.torch
import forebay.torchdata

EPOCHS = 2


def prepared(batch: forebay.torch.Batch) -> tuple[torch.Tensor, torch.Tensor]:
    return batch["image"].float() / 255, batch["label"]


def main(uri: str, checkpoint: str, steps: int | None) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(28 * 28, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    source: Any = forebay.torch.Loader(uri, batch_size=256, seed=1, columns=["image", "label"])
    node = nodes.ParallelMapper(forebay.torchdata.Node(source), prepared, num_workers=2, method="thread")
    loader = nodes.Loader(nodes.Prefetcher(node, prefetch_factor=2))
    epoch = 0
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["data"])
        epoch = saved["epoch"]

    loss = torch.zeros(())
    for epoch in range(epoch, EPOCHS):
        for image, label in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(image), label)
            loss.backward()
            optimizer.step()
            if steps is not None and (steps := steps - 1) == 0:
                break
        if steps == 0:
            break

    torch.save({"model": model.state_dict(), "data": loader.state_dict(), "epoch": epoch}, checkpoint)
    weights = sum(float(parameter.detach().double().abs().sum()) for parameter in model.parameters())
    print(f"epoch {epoch}, loss {loss:.6f}, weights {weights:.9f}")


main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
