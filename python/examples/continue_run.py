"""Goes on in Python where `forebay-train` left a checkpoint: the same parameters, bit for bit, as had it gone on itself.

    torchrun --nproc-per-node 2 continue_run.py URI CHECKPOINT OUT

CHECKPOINT is a directory `step-...` of a run of `forebay-train --schedule constant` with `--model convnet` or `resnet18` on
the columns `image` and `label`. This reads its weights, its momentum and its place in the data, trains the rest of that
epoch and writes the weights to OUT.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import forebay.torch


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.hidden, self.out = nn.Linear(16 * 7 * 7, 64), nn.Linear(64, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = pixels.float().view(-1, 1, 28, 28) * (1.0 / (255.0 * 0.3081)) - 0.1307 / 0.3081
        x = torch.max_pool2d(self.conv1(x).relu(), 2)
        x = torch.max_pool2d(self.conv2(x).relu(), 2)
        scores: torch.Tensor = self.out(self.hidden(x.flatten(1)).relu())
        return scores


class Block(nn.Module):
    def __init__(self, inner: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inner, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.downsample: nn.Module | None = None
        if stride != 1 or inner != out:
            self.downsample = nn.Sequential(nn.Conv2d(inner, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        if self.downsample is not None:
            x = self.downsample(x)
        out: torch.Tensor = (y + x).relu()
        return out


class ResNet18(nn.Module):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        sizes = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        for number, (inner, out, stride) in enumerate(sizes, start=1):
            setattr(self, f"layer{number}", nn.Sequential(Block(inner, out, stride), Block(out, out, 1)))
        self.fc = nn.Linear(512, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        for number in range(1, 5):
            x = getattr(self, f"layer{number}")(x)
        scores: torch.Tensor = self.fc(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return scores


def images_of(model: dict[str, object]) -> forebay.torch.Image | None:
    """What a ResNet of `forebay-train` takes, in the words of the loader."""
    image, normalise = model.get("image"), model.get("normalise")
    if not isinstance(image, dict) or not isinstance(normalise, dict):
        return None
    return forebay.torch.Image(
        image["size"],
        augment="crop",
        grey=image["channels"] == 1,
        dtype=torch.float32,
        mean=normalise["mean"],
        std=normalise["std"],
    )


def main(uri: str, checkpoint: Path, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    meta = json.loads((checkpoint / "checkpoint.json").read_text())
    settings, described = meta["settings"], json.loads(meta["identity"]["model"])
    image = images_of(described)
    network = ConvNet() if image is None else ResNet18(described["image"]["channels"], described["classes"])
    weights = load_file(checkpoint / "weights.safetensors")
    network.load_state_dict(weights, strict=False)
    model = DistributedDataParallel(network)

    sgd, training = settings["optimizer"], load_file(checkpoint / "training.safetensors")
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=settings["schedule"]["lr"],
        momentum=sgd["momentum"],
        nesterov=sgd["nesterov"],
        weight_decay=sgd["weight_decay"],
    )
    for name, parameter in network.named_parameters():
        optimizer.state[parameter]["momentum_buffer"] = training[f"momentum.{name}"]

    batch = meta["global_batch"]
    images = {} if image is None else {"image": image}
    loader = forebay.torch.Loader(uri, global_batch=batch, columns=["image", "label"], images=images, epochs=1)
    # Seed and shuffle are the state's.
    place = {"forebay": 1, "dataset": meta["identity"]["manifest_digest"], "epoch": 0, "samples_done": 0}
    loader.load_state_dict({**place, "state": meta["loader_state"]})  # type: ignore[typeddict-item]
    for rows in loader:
        optimizer.zero_grad()
        losses = nn.functional.cross_entropy(model(rows["image"]), rows["label"].long(), reduction="none")
        # The mean over the rows of all ranks, as DDP takes the mean over the ranks.
        (losses.sum() * (dist.get_world_size() / batch)).backward()
        optimizer.step()

    if dist.get_rank() == 0:
        save_file(network.state_dict(), out)
        print(f"epoch {loader.epoch}, {loader.steps_left} steps left")
    # Its group must outlive it, or the group's threads may wait for this one for ever (pytorch/pytorch#56297).
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
