"""FSDP2 over a device mesh: ranks that share a model's layers share their data, too.

    torchrun --nproc-per-node 4 mesh.py URI TENSOR_RANKS CHECKPOINT [STEPS]

The mesh has two dimensions, `data` and `tensor`. The loader's rank and number of ranks are those of the dimension `data`
alone, so that the ranks of one `tensor` group read the same batches, and each sample trains once. Trains on the columns
`image` and `label` of the dataset at URI, read through the cache at $FOREBAY_ENDPOINT, up to the step STEPS (20) of the first
epoch. The checkpoint holds whole tensors, so that started again, on a mesh of any shape, it goes on with the very next batch.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import forebay.torch


WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def main(uri: str, tensor_ranks: int, checkpoint: str, steps: int) -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size() // tensor_ranks, tensor_ranks), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(28 * 28, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=False)

    data = mesh["data"]
    loader = forebay.torch.Loader(
        uri, global_batch=256, seed=1, columns=["image", "label"], rank=data.get_local_rank(), world=data.size()
    )
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, weights_only=True)
        states = {"model_state_dict": saved["model"], "optim_state_dict": saved["optimizer"]}
        set_state_dict(model, optimizer, **states, options=WHOLE)
        loader.load_state_dict(saved["data"])

    loss = torch.zeros(())
    done = len(loader) - loader.steps_left
    for _, batch in zip(range(done, steps), loader, strict=False):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch["image"].float() / 255), batch["label"])
        loss.backward()
        optimizer.step()
    # Of all data ranks; those of one tensor group have the same one.
    loss = loss.detach() / dist.get_world_size()
    dist.all_reduce(loss)
    # All ranks gather them; only the first one has them then.
    weights, optimizer_state = get_state_dict(model, optimizer, options=WHOLE)
    if dist.get_rank() == 0:
        state = {"model": weights, "optimizer": optimizer_state, "data": loader.state_dict()}
        torch.save(state, checkpoint + ".partial")
        os.replace(checkpoint + ".partial", checkpoint)
        print(f"mesh {tuple(mesh.shape)}: {loader.steps_left} steps left, loss {loss:.5f}")
    loader.close()
    dist.destroy_process_group()


main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 20)
