"""What the Python loader does on a machine with a GPU; run.sh starts it with the folder of MNIST as its argument.

Prints a line for each check, as run.sh does, and figures of warm epochs that arrive on the GPU. The node is one of this
process's own (`forebay-server` beside run.sh).
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

import forebay
import forebay.torch

ROUNDS = 5
SETTINGS = {"seed": 3, "shuffle": 4, "ending": "pad", "batch_size": 1024}
X_ROWS, X_BYTES = 160_000, 3_136
WINDOW = {"seed": 3, "shuffle": 16, "ending": "pad", "batch_size": 1024}


def main(mnist: str) -> bool:
    dataset = forebay.dataset(f"file://{mnist}/train")
    kept = [values(dataset), registered(dataset)]
    with tempfile.TemporaryDirectory() as folder:
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            say("SKIP", "python-speed", "pyarrow, which makes the rows, is not there")
        else:
            make_x(Path(folder))
            kept.append(speed(forebay.dataset(f"file://{folder}")))
    return all(kept)


def say(outcome: str, check: str, text: str) -> bool:
    print(f"{outcome} {check}: {text}", flush=True)
    return outcome != "FAIL"


def values(dataset) -> bool:
    """Five epochs; batches are changed in place and dropped while others travel."""
    here = forebay.torch.Loader(dataset, **SETTINGS)
    there = forebay.torch.Loader(dataset, device="cuda", **SETTINGS)
    compared, wrong = 0, 0
    for _ in range(5):
        for one, other in zip(here, there, strict=True):
            wrong += int((other["image"].cpu() != one["image"]).sum()) + int((other["label"].cpu() != one["label"]).sum())
            compared += other["image"].numel() + other["label"].numel()
            other["image"].fill_(1)
    here.close()
    there.close()
    return say("FAIL" if wrong or not compared else "PASS", "python-values", f"{compared} values compared, {wrong} wrong")


def registered(dataset) -> bool:
    """After the first epoch batches come in memory that CUDA reads without a copy."""
    pinned: list[bool] = []

    def look(batch):
        pinned.append(batch["image"].is_pinned())
        return batch

    with forebay.torch.Loader(dataset, device="cuda", transform=look, **SETTINGS) as loader:
        for _ in loader:
            pass
        pinned.clear()
        for _ in range(2):
            for _ in loader:
                pass
    share = sum(pinned) / len(pinned)
    return say("PASS" if share >= 0.9 else "FAIL", "python-registered", f"{share:.2f} of the batches, promised 0.9")


def make_x(folder: Path) -> None:
    """Rows of 3,136 bytes, as in `make bench-warm`."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    dice, each = np.random.default_rng(1), X_ROWS // 8
    for part in range(8):
        values = pa.array(dice.integers(0, 256, each * X_BYTES, dtype=np.uint8))
        rows = pa.FixedSizeListArray.from_arrays(values, X_BYTES)
        pq.write_table(pa.table({"x": rows}), folder / f"{part}.parquet", row_group_size=5_000)


def speed(dataset) -> bool:
    """Warm epochs onto the GPU: from registered memory, by way of torch's pinned memory, and into main memory, in turns."""
    ways = {"registered": ("cuda", True), "copied": ("cuda", False), "main memory": (None, False)}
    loaders = {}
    for way, (device, registers) in ways.items():
        loaders[way] = forebay.torch.Loader(dataset, device=device, **WINDOW)
        if not registers:
            loaders[way]._cuda = None
        epoch(loaders[way])
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, loader in loaders.items():
            found[way].append(epoch(loader))
    for loader in loaders.values():
        loader.close()
    for way, epochs in found.items():
        rates, cpu = zip(*epochs, strict=True)
        gb_per_s = statistics.median(rates) * X_BYTES / 1e9
        print(
            f"python-speed, {way}: {statistics.median(rates):,.0f} rows/s ({min(rates):,.0f} to {max(rates):,.0f}), "
            f"{gb_per_s:.2f} GB/s, {statistics.median(cpu):.2f} s/GB of this process",
            flush=True,
        )
    pairs = zip(found["registered"], found["copied"], strict=True)
    ratios = [one[0] / other[0] for one, other in pairs]
    ratio = statistics.median(ratios)
    text = f"registered memory has {ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f}) of the rows/s of copies, wanted 1.0"
    return say("PASS" if ratio >= 1 else "FAIL", "python-speed", text)


def epoch(loader) -> tuple[float, float]:
    """Rows a second of an epoch, each batch looked at where it arrives; and seconds of processor time for each GB."""
    began, cpu, rows = time.perf_counter(), time.process_time(), 0
    seen = None
    for batch in loader:
        # Something that reads all of it, where it is; only on the GPU is that for nothing.
        if batch["x"].is_cuda:
            looked = batch["x"].view(torch.int64).sum()
            seen = looked if seen is None else seen + looked
        rows += len(batch["x"])
    if seen is not None:
        torch.cuda.synchronize()
    return rows / (time.perf_counter() - began), (time.process_time() - cpu) / (rows * X_BYTES / 1e9)


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1]) else 1)
