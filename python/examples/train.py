"""A training loop with augmentation in threads, that goes on where it was stopped.

    train.py URI CHECKPOINT [STEPS]

Trains on the columns `image` and `label` of the dataset at URI, read through the cache at $FOREBAY_ENDPOINT. With STEPS
the run stops after that number; started again, it goes on with the very next batch, augmented as it would have been.
"""

import os
import random
import sys

import torch

import forebay.torch

EPOCHS, SEED = 2, 1


def augmented(batch: forebay.torch.Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Shifts each image by chance that follows from seed, epoch and sample: whatever rank and batch it is in, and after a
    resume too, it is the same."""
    image = batch["image"].float().reshape(-1, 28, 28) / 255
    for row, sample in enumerate(batch.sample_ids.tolist()):
        chance = random.Random(f"{SEED} {batch.epoch} {sample}")
        image[row] = image[row].roll((chance.randint(-2, 2), chance.randint(-2, 2)), (0, 1))
    return image.flatten(1), batch["label"]


def main(uri: str, checkpoint: str, steps: int | None) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(28 * 28, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = forebay.torch.Loader(
        uri, batch_size=256, seed=SEED, columns=["image", "label"], transform=augmented, threads=2
    )
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"])

    loss = torch.zeros(())
    while loader.epoch < EPOCHS and steps != 0:
        for image, label in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(image), label)
            loss.backward()
            optimizer.step()
            if steps is not None and (steps := steps - 1) == 0:
                break

    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": loader.state_dict()}
    torch.save(state, checkpoint + ".partial")
    os.replace(checkpoint + ".partial", checkpoint)
    print(f"epoch {loader.epoch}, {loader.steps_left} steps left, loss {loss:.6f}")
    loader.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
