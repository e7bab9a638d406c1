"""Context parallel: ranks that share a sequence read the same rows, and each takes its part of every row.

    torchrun --nproc-per-node 4 context.py URI CONTEXT_RANKS CHECKPOINT [STEPS]

The mesh has two dimensions, `data` and `context`. The loader's rank and number of ranks are those of the
dimension `data` alone, so that the ranks of one `context` group read the same batches. The sequences are the 784
pixels of the column `image` of the dataset at URI, read through the cache at $FOREBAY_ENDPOINT: the model learns
which value a pixel has, from the pixels before it. Each rank gathers the keys and values of its group. On GPUs
torch's own `torch.distributed.tensor.experimental.context_parallel` passes them round; it takes the same batches.
It trains up to the step STEPS (20) of the first epoch. Started again, on a mesh of any shape, it goes on with the very
next batch.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.nn.parallel import DistributedDataParallel

import forebay.torch

PIXELS, VALUES, WIDTH = 28 * 28, 256, 16


class Attention(torch.nn.Module):
    """One layer of attention over whole sequences, for this rank's part of them."""

    def __init__(self, context: DeviceMesh) -> None:
        super().__init__()
        self.context = context
        self.value, self.place = torch.nn.Embedding(VALUES, WIDTH), torch.nn.Embedding(PIXELS, WIDTH)
        self.query_key_value, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, VALUES)

    def forward(self, pixels: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Scores `[rows, places, VALUES]` of pixels `[rows, places]`, at these places of a sequence."""
        x = self.value(pixels) + self.place(places)
        query, key, value = self.query_key_value(x).chunk(3, dim=2)
        before = torch.arange(PIXELS) <= places[:, None]
        seen = torch.nn.functional.scaled_dot_product_attention(query, self.whole(key), self.whole(value), before)
        scores: torch.Tensor = self.out(x + seen)
        return scores

    def whole(self, part: torch.Tensor) -> torch.Tensor:
        """`[rows, PIXELS, WIDTH]` of all ranks' parts. Going back, the gradients of all ranks are summed."""
        return DTensor.from_local(part, self.context, [Shard(1)]).full_tensor(grad_placements=[Partial()])


def main(uri: str, context_ranks: int, checkpoint: str, steps: int) -> None:
    dist.init_process_group("gloo")
    shape = (dist.get_world_size() // context_ranks, context_ranks)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "context"))
    torch.manual_seed(0)
    # The mean over all ranks is that over all rows and all parts.
    model = DistributedDataParallel(Attention(mesh["context"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    data = mesh["data"]
    loader = forebay.torch.Loader(
        uri, global_batch=16, seed=1, columns=["image"], rank=data.get_local_rank(), world=data.size()
    )
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"])

    places = torch.arange(PIXELS).chunk(context_ranks)[mesh["context"].get_local_rank()]
    loss = torch.zeros(())
    done = len(loader) - loader.steps_left
    for _, batch in zip(range(done, steps), loader, strict=False):
        pixels = batch["image"].long()
        # The first one follows from nothing.
        before = torch.nn.functional.pad(pixels[:, :-1], (1, 0))
        optimizer.zero_grad()
        scores = model(before[:, places], places)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), pixels[:, places].flatten())
        loss.backward()
        optimizer.step()

    loss = loss.detach() / dist.get_world_size()
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": loader.state_dict()}
        torch.save(state, checkpoint + ".partial")
        os.replace(checkpoint + ".partial", checkpoint)
        print(f"mesh {tuple(mesh.shape)}: {loader.steps_left} steps left, loss {loss:.5f}")
    loader.close()
    # Its group must outlive it, or the group's threads may wait for ever (pytorch/pytorch#56297).
    del model
    dist.destroy_process_group()


main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 20)
