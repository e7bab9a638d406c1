"""Our own package: `forebay.torch.Loader` from a node on this machine, with windows of 16 segments. The node's processor
time and memory count as its own, as those of workers count as a peer's."""

import functools

import torch

import forebay.torch
from consumer import Job, run, servers


def dataset(job: Job) -> forebay.Dataset:
    return forebay.dataset(job.uri, endpoint=job.node_endpoint)


def loader(job: Job, data: forebay.Dataset, epochs: int) -> forebay.torch.Loader:
    return forebay.torch.Loader(
        data,
        batch_size=job.batch_rows,
        seed=job.seed,
        shuffle=job.window if job.shuffle else None,
        ending="exact",
        epochs=epochs,
        rank=0,
        world=1,
        binaries="raw",
    )


def as_others_have_it(batch: forebay.torch.Batch) -> dict:
    """Binaries as all their bytes, and where each ends."""
    return {"b": batch["b"].values, "b_ends": batch["b"].offsets[1:]} if "b" in batch else batch


def epochs(job: Job):
    servers.append(job.node)
    # Opened in the first epoch, as the peers open their files there.
    opened = functools.cache(dataset)

    def epoch(number):
        # A loader for each epoch, which reads nothing of the next one.
        with loader(job, opened(job), number + 1) as batches:
            batches.set_epoch(number)
            yield from map(as_others_have_it, batches)

    return epoch


def resume(job: Job, state):
    batches = loader(job, dataset(job), 1)
    if state is not None:
        batches.load_state_dict(state)
    return map(as_others_have_it, batches), batches.state_dict


# The sums of the consumer count as the work of one thread.
torch.set_num_threads(1)
run(epochs, resume=resume)
