"""A network in two stages, each on a rank of its own, by `torch.distributed.pipelining`.

    torchrun --nproc-per-node 2 pipeline.py URI CHECKPOINT [STEPS]

Both ranks read the same batches: the first stage takes the images, the last one the labels. With one rank, the whole network
is there: the losses are the same. With STEPS it stops at that step of the epoch; started again, on one rank or two, it goes
on with the very next batch.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import forebay.torch

BATCH, MICROBATCHES = 128, 4


def loss_of(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(scores, labels)


def main(uri: str, checkpoint: str, steps: int | None) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    stages = [
        torch.nn.Sequential(torch.nn.Linear(28 * 28, 32), torch.nn.ReLU()),
        torch.nn.Linear(32, 10),
    ]
    ranks, rank = dist.get_world_size(), dist.get_rank()
    own = torch.nn.Sequential(*stages) if ranks == 1 else stages[rank]
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    device = torch.device("cpu")
    schedule = None
    if ranks == 2:
        schedule = ScheduleGPipe(PipelineStage(own, rank, ranks, device), MICROBATCHES, loss_fn=loss_of)

    # All stages of one pipeline are one reader.
    loader = forebay.torch.Loader(uri, global_batch=BATCH, seed=1, columns=["image", "label"], rank=0, world=1)
    # Of all losses so far, on the last rank.
    total = torch.zeros(())
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, weights_only=True)
        for stage, state in zip(stages, saved["stages"], strict=True):
            stage.load_state_dict(state)
        loader.load_state_dict(saved["data"])
        total = saved["total"]

    count = len(loader) if steps is None else steps
    done = len(loader) - loader.steps_left if loader.epoch == 0 else len(loader)
    for _, batch in zip(range(done, count), loader, strict=False):
        optimizer.zero_grad()
        images, labels = batch["image"].float() / 255, batch["label"]
        losses: list[torch.Tensor] = []
        if schedule is None:
            # As a schedule does it: the mean over the losses of microbatches.
            for part in zip(images.chunk(MICROBATCHES), labels.chunk(MICROBATCHES), strict=True):
                losses.append(loss_of(own(part[0]), part[1]))
            (sum(losses, torch.zeros(())) / MICROBATCHES).backward()
        elif rank == 0:
            schedule.step(images)
        else:
            schedule.step(target=labels, losses=losses)
        optimizer.step()
        if losses:
            total += torch.stack([loss.detach() for loss in losses]).mean()

    dist.broadcast(total, src=ranks - 1)
    states: list[list[dict[str, torch.Tensor]]] = [[] for _ in range(ranks)]
    dist.all_gather_object(states, [stage.state_dict() for stage in (stages if ranks == 1 else [own])])
    if rank == 0:
        # The optimizer has no state.
        state = {"stages": sum(states, []), "data": loader.state_dict(), "total": total}
        torch.save(state, checkpoint + ".partial")
        os.replace(checkpoint + ".partial", checkpoint)
        print(f"{count} steps, loss {total / count:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
