"""FSDP2 over a device mesh: ranks that share a model's layers share their data, too.

    torchrun --nproc-per-node 4 mesh.py URI TENSOR_RANKS [STEPS]

The mesh has two dimensions, `data` and `tensor`. The loader's rank and number of ranks are those of the dimension `data`
alone, so that the ranks of one `tensor` group read the same batches, and each sample trains once. Trains on the columns
`image` and `label` of the dataset at URI, read through the cache at $FOREBAY_ENDPOINT.
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import forebay.torch


def main(uri: str, tensor_ranks: int, steps: int) -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size() // tensor_ranks, tensor_ranks), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(28 * 28, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    data = mesh["data"]
    loader = forebay.torch.Loader(
        uri, global_batch=256, seed=1, columns=["image", "label"], rank=data.get_local_rank(), world=data.size()
    )
    loss = torch.zeros(())
    for _, batch in zip(range(steps), loader, strict=False):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch["image"].float() / 255), batch["label"])
        loss.backward()
        optimizer.step()
    # Of all data ranks; those of one tensor group have the same one.
    loss = loss.detach() / dist.get_world_size()
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print(f"mesh {tuple(mesh.shape)}: loss {loss:.5f}")
    loader.close()
    dist.destroy_process_group()


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 20)
