"""The Python half of `make parity`: the training that `forebay-parity` does in Rust, with PyTorch's own DDP.

Run by torchrun: train.py FOLDER MODEL STEPS. It reads the parameters and batches that `forebay-parity` has exported,
and rank 0 leaves MODEL.python.parameters and MODEL.python.steps beside them, in the same form.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

LR, MOMENTUM = 0.01, 0.9  # The same in forebay-parity.rs.


class Block(nn.Module):
    def __init__(self, inner, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = nn.Sequential()
        if stride != 1 or inner != out:
            self.downsample = nn.Sequential(nn.Conv2d(inner, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(self.downsample(x) + y)


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, 2, 1)
        for index, (inner, out) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)]):
            layer = nn.Sequential(Block(inner, out, 1 if index == 0 else 2), Block(out, out, 1))
            setattr(self, f"layer{index + 1}", layer)
        self.fc = nn.Linear(512, 1000)

    def forward(self, x):
        x = self.pool(torch.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(torch.nn.functional.adaptive_avg_pool2d(x, 1), 1))


class ConvNet(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(1)),
            nn.Linear(784, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )


def main(folder, name, steps):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    def path(what):
        return os.path.join(folder, f"{name}.{what}")

    def numbers(what, dtype):
        count = os.path.getsize(path(what)) // torch.empty(0, dtype=dtype).element_size()
        return torch.from_file(path(what), size=count, dtype=dtype).clone()

    shape = [int(word) for word in open(path("shape")).read().split()]
    inputs = numbers("inputs", torch.float32).view(shape)
    labels = numbers("labels", torch.int64).view(shape[:2])
    rows = shape[1] // world

    model = {"convnet": ConvNet, "resnet18": ResNet18}[name]()
    parameters = dict(model.named_parameters())
    order = [line.split()[0] for line in open(path("names"))]
    assert sorted(order) == sorted(parameters), set(order) ^ set(parameters)
    values, start = numbers("parameters", torch.float32), 0
    with torch.no_grad():
        for key in order:
            count = parameters[key].numel()
            parameters[key].copy_(values[start : start + count].view(parameters[key].shape))
            start += count

    ddp = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    # As forebay-parity updates them. Left to itself, torch goes tensor by tensor on CPUs.
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, foreach=True)
    milliseconds = []
    for step in range(steps):
        x = inputs[step % shape[0]].narrow(0, rank * rows, rows).contiguous()
        y = labels[step % shape[0]].narrow(0, rank * rows, rows).contiguous()
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        optimizer.step()
        milliseconds.append((time.perf_counter() - began) * 1e3)
    dist.barrier()
    if rank == 0:
        flat = torch.cat([parameters[key].detach().flatten() for key in order])
        # A shared mapping of the file: no numpy needed.
        torch.from_file(path("python.parameters"), shared=True, size=flat.numel(), dtype=flat.dtype).copy_(flat)
        with open(path("python.steps"), "w") as file:
            file.writelines(f"{value:.4f}\n" for value in milliseconds)
    # Its group must outlive it, or the group's threads may wait for this one for ever (pytorch/pytorch#56297).
    del ddp
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
