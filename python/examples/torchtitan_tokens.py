"""TorchTitan's interface for data loaders: tokens, with checkpoints by torch.distributed.checkpoint.

    torchrun --nproc-per-node 2 torchtitan_tokens.py URI FOLDER [STEPS]

Trains a model of the next token on the column `tokens` of the dataset at URI: lists of 17 tokens, read through the cache at
$FOREBAY_ENDPOINT. The loader is built and saved as TorchTitan's trainer does it, which in a run of its own is

    config.dataloader = forebay.torchtitan.DataLoader.Config(dataset=uri, tokens="tokens")

With STEPS the run stops after that number; started again, on any number of ranks, it goes on with the very next batch.
"""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.nn.parallel import DistributedDataParallel

import forebay.torchtitan

STEPS, GLOBAL_BATCH, SEQUENCE, VOCABULARY = 20, 8, 16, 1000


class Train:
    """The rest of a checkpoint, beside the loader: the model, and how many steps it was trained."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.step = model, 0

    def state_dict(self) -> dict[str, Any]:
        return {"model": get_model_state_dict(self.model), "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_model_state_dict(self.model, state["model"])
        self.step = state["step"]


def main(uri: str, folder: str, stop: int) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 16), torch.nn.Linear(16, VOCABULARY))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.5)

    config = forebay.torchtitan.DataLoader.Config(dataset=uri, tokens="tokens", seed=1)
    loader: Any = config.build(
        dp_world_size=world, dp_rank=rank, seq_len=SEQUENCE, local_batch_size=GLOBAL_BATCH // world, tokenizer=None
    )
    train = Train(model)
    states: dict[str, Any] = {"train": train, "dataloader": loader}
    if os.path.exists(folder):
        state_dict_loader.load(states, checkpoint_id=folder)

    loss = torch.zeros(())
    batches = iter(loader)
    while train.step < stop:
        inputs, labels = next(batches)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(parallel(inputs["input"]).flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        train.step += 1

    state_dict_saver.save(states, checkpoint_id=folder)
    weights = sum(float(parameter.detach().double().abs().sum()) for parameter in model.parameters())
    if rank == 0:
        print(f"step {train.step}, samples {loader.state_dict()['samples_done']}, weights {weights:.6f}")
    # Its group must outlive it, or the group's threads may wait for this one for ever (pytorch/pytorch#56297).
    del parallel
    dist.destroy_process_group()


main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else STEPS)
