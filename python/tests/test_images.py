"""Images decoded by the loader: the values of the files, varied as the seed, the epoch and the sample say."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import Cluster, needs
from pictures import SIDE, mirrored, pixels, planes

import forebay
from forebay._forebay import ImageDecoder, ImageForm

torch = needs("torch")

import forebay.torch
from forebay.torch import Image

SETTINGS: dict[str, Any] = {"global_batch": 12, "seed": 3, "shuffle": 2}


def loader(cluster: Cluster, images: dict[str, Image], **options: Any) -> forebay.torch.Loader[forebay.torch.Batch]:
    columns = options.pop("columns", ["id", *dict.fromkeys(name.split(".")[0] for name in images)])
    data = options.pop("data", "photos")
    return forebay.torch.Loader(cluster.dataset(data, columns=columns), images=images, **{**SETTINGS, **options})


def by_sample(batches: Any, name: str) -> dict[int, Any]:
    return {i: image for batch in batches for i, image in zip(batch["id"].tolist(), batch[name], strict=True)}


@pytest.mark.parametrize("name", ["photo", "image", "raw", "nested.left"])
def test_images_are_the_files_pixels(cluster: Cluster, name: str) -> None:
    """Files, Hugging Face's structs, raw pixels and fields of structs: all give the same."""
    seen = 0
    for batch in loader(cluster, {name: Image(SIDE)}):
        images: Any = batch
        for part in name.split("."):
            images = images[part]
        expected = torch.tensor([planes(pixels(i)) for i in batch["id"].tolist()], dtype=torch.uint8)
        assert images.dtype == torch.uint8 and torch.equal(images, expected)
        if name == "nested.left":
            assert torch.equal(batch["nested"]["number"], batch["id"].int())
        images.zero_()
        seen += len(images)
    assert seen == 48


def test_images_are_mirrored_as_an_independent_model_says(cluster: Cluster) -> None:
    run = loader(cluster, {"photo": Image(augment="flip", size=SIDE)}, seed=11)
    flips = set()
    for epoch in range(2):
        for batch in run:
            for i, image in zip(batch["id"].tolist(), batch["photo"], strict=True):
                expected = torch.tensor(planes(pixels(i)), dtype=torch.uint8)
                is_mirrored = mirrored(11, epoch, i)
                flips.add((epoch, is_mirrored))
                assert torch.equal(image, expected.flip(2) if is_mirrored else expected), (epoch, i)
    assert len(flips) == 4


def test_floats_are_what_models_of_forebay_train_compute(cluster: Cluster) -> None:
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.25, 2.0]
    bytes_of = by_sample(loader(cluster, {"photo": Image(6)}), "photo")
    plain = by_sample(loader(cluster, {"photo": Image(6, dtype=torch.float32)}), "photo")
    scaled = by_sample(loader(cluster, {"photo": Image(6, dtype=torch.float32, mean=mean, std=std)}), "photo")
    half = by_sample(loader(cluster, {"photo": Image(6, dtype=torch.float16)}), "photo")
    grey = by_sample(loader(cluster, {"photo": Image(6, grey=True)}), "photo")
    for i, image in bytes_of.items():
        assert image.shape == (3, 6, 6) and grey[i].shape == (1, 6, 6)
        assert torch.equal(plain[i], image.float() / 255)
        of_bytes = [torch.tensor([255.0 * value for value in values]).view(3, 1, 1) for values in (mean, std)]
        assert torch.equal(scaled[i], (image - of_bytes[0]) / of_bytes[1])
        assert torch.equal(half[i], plain[i].half())


def test_torch_s_default_type_changes_no_pixel(cluster: Cluster) -> None:
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    images = {"photo": Image(6, dtype=torch.float32, mean=mean, std=std)}
    rows = forebay.torch.MapDataset(cluster.dataset("photos", columns=["photo"]), images=images)
    expected, row = by_sample(loader(cluster, images), "photo"), rows[7]["photo"]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = by_sample(loader(cluster, images), "photo")
        with torch.device("meta"):
            assert torch.equal(rows[7]["photo"], row)
    finally:
        torch.set_default_dtype(before)
    assert found.keys() == expected.keys()
    assert all(image.dtype == torch.float32 and torch.equal(found[i], image) for i, image in expected.items())


@pytest.mark.parametrize("augment", ["crop", "shift", "flip", None])
def test_what_is_seen_follows_from_seed_epoch_and_sample_alone(cluster: Cluster, augment: Any) -> None:
    """Whatever ranks, batches and threads there are, and wherever the run was stopped."""
    images = {"large": Image(12, augment=augment)}
    run = loader(cluster, images)
    epochs = [by_sample(run, "large") for _ in range(2)]
    assert len(epochs[0]) == 48
    changed = sum(not torch.equal(epochs[0][i], epochs[1][i]) for i in epochs[0])
    # Every image has another crop in another epoch; of flips half are the same.
    least = {"crop": 40, "shift": 40, "flip": 10, None: 0}[augment]
    assert least <= changed <= (48 if augment else 0)
    other_seed = by_sample(loader(cluster, images, seed=4), "large")
    assert any(not torch.equal(other_seed[i], image) for i, image in epochs[0].items()) == (augment is not None)
    ranks = [
        by_sample(loader(cluster, images, global_batch=16, rank=rank, world=2, decode_threads=rank + 1), "large")
        for rank in range(2)
    ]
    assert not ranks[0].keys() & ranks[1].keys()
    assert all(torch.equal(epochs[0][i], image) for rank in ranks for i, image in rank.items())
    for steps in range(1, 4):
        stopped = loader(cluster, images)
        seen = by_sample((batch for _, batch in zip(range(steps), stopped, strict=False)), "large")
        resumed = loader(cluster, images, global_batch=6, seed=99)
        resumed.load_state_dict(stopped.state_dict())
        seen |= by_sample(resumed, "large")
        assert seen.keys() == epochs[0].keys()
        assert all(torch.equal(epochs[0][i], image) for i, image in seen.items())
        assert all(torch.equal(epochs[1][i], image) for i, image in by_sample(resumed, "large").items())


def test_transforms_get_images(cluster: Cluster) -> None:
    run: Any = loader(cluster, {"photo": Image(SIDE)}, transform=lambda batch: (batch["id"], batch["photo"] * 2))
    for ids, doubled in run:
        assert torch.equal(doubled, torch.tensor([planes(pixels(i)) for i in ids.tolist()], dtype=torch.uint8) * 2)


def test_data_loaders_give_the_same_images(cluster: Cluster) -> None:
    images = {"photo": Image(SIDE, augment="crop")}
    expected = by_sample(loader(cluster, images), "photo")
    dataset = cluster.dataset("photos", columns=["id", "photo"])
    data = forebay.torch.IterableDataset(dataset, images=images, **SETTINGS)
    for workers in [0, 2]:
        data.set_epoch(0)
        method = "forkserver" if workers else None
        batches = torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers, multiprocessing_context=method)
        found = by_sample(batches, "photo")
        assert found.keys() == expected.keys() and all(torch.equal(found[i], expected[i]) for i in found)


def test_rows_by_number_have_images_that_are_not_varied(cluster: Cluster) -> None:
    dataset = cluster.dataset("photos", columns=["id", "photo"])
    rows = forebay.torch.MapDataset(dataset, images={"photo": Image(SIDE)})
    for data in [rows, pickle.loads(pickle.dumps(rows))]:
        assert data[41]["photo"].tolist() == planes(pixels(41))
        batch = data.collate(data.__getitems__([7, 40, 3]))
        assert batch["photo"].tolist() == [planes(pixels(i)) for i in [7, 40, 3]]
    with pytest.raises(forebay.InvalidError, match="images= varies 'photo', but a row by its number has no epoch"):
        forebay.torch.MapDataset(dataset, images={"photo": Image(SIDE, augment="flip")})


def test_an_image_that_cannot_be_names_its_sample(cluster: Cluster) -> None:
    run = loader(cluster, {"photo": Image(SIDE)}, data="damaged", shuffle=None, global_batch=1)
    seen: list[int] = []
    told: list[str] = []
    while run.epoch == 0:
        try:
            for batch in run:
                seen += batch["id"].tolist()
        except forebay.Error as e:
            told.append(f"{type(e).__name__}: {e}")
            assert any("samples " in note for note in e.__notes__)
            # The run stands before it: go on behind it.
            assert run.steps_left == 10 - (3, 5, 7)[len(told) - 1]
            state = run._at(0, (3, 5, 7)[len(told) - 1] + 1)
            run._stop()
            run._place(state)
    assert seen == [0, 1, 2, 4, 6, 8, 9]
    assert told[0].startswith("CorruptError: column `photo`, sample 3: the image is damaged")
    assert told[1] == "CorruptError: column `photo`, sample 5: these 8 bytes are neither JPEG nor PNG"
    assert told[2].startswith("InvalidError: column `photo`, sample 7: a null, which is no image")


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ({"none": Image()}, "images= names `none`, which is none of id, photo"),
        ({"photo.none": Image()}, "images= names `photo.none`, which is none of"),
        ({"id": Image()}, "images= names `id` of type Int64, but images are files"),
        ({"raw": Image(shape=(8, 8))}, "`raw` holds 192 bytes a row, but images of shape 8x8x1 have 64"),
        ({"raw": Image(shape=(8, 8, 2))}, r"shape=\[8, 8, 2\]: pass height, width"),
        ({"photo": Image(shape=(8, 8, 3))}, "shape= is for raw pixels, but `photo` holds files"),
        ({"photo": Image(0)}, "size=0: it must be from 1 to 4096"),
        ({"photo": Image(8, crop_share=0.0)}, "crop_share=0: it must be above 0"),
        ({"photo": Image(8, augment="blur")}, "augment: `blur`: there are crop, shift, flip and none"),  # type: ignore[arg-type]
        ({"photo": 224}, "images= has 224 for 'photo': pass a forebay.torch.Image"),
        ({"photo": Image(8, dtype=torch.float32, mean=[0.5], std=[1])}, "mean= has 1 numbers, .* have 3 channels"),
    ],
)
def test_what_makes_no_sense_is_refused(cluster: Cluster, images: Any, message: str) -> None:
    with pytest.raises(forebay.InvalidError, match=message):
        loader(cluster, images, columns=["id", "photo", "raw"])


def decoding(expected: int) -> None:
    """Waits until this process has as many threads that decode."""
    until = time.monotonic() + 60
    while True:
        names = []
        for task in Path("/proc/self/task").iterdir():
            # One that has ended meanwhile has no name.
            with suppress(OSError):
                names.append((task / "comm").read_text())
        count = sum(name.startswith("decode-") for name in names)
        if count == expected:
            return
        assert time.monotonic() < until, f"{count} threads, not {expected}"
        time.sleep(0.01)


def test_the_threads_end_with_the_loader(cluster: Cluster) -> None:
    """They begin with the first image, and are gone when it is closed."""
    gc.collect()
    decoding(0)
    run = loader(cluster, {"photo": Image(SIDE)}, decode_threads=3)
    decoding(0)
    next(iter(run))
    decoding(3)
    run.close()
    decoding(0)


def test_ranks_of_a_machine_share_its_processors_for_images(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """By any launcher's variables, also where the rank is told: one thread of each, where they have a processor less."""
    allowed = len(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "cpu_count", lambda: allowed)
    said = {"PROCID": "0", "STEP_NUM_TASKS": "2", "STEP_TASKS_PER_NODE": f"{allowed + 1}"}
    for name, value in said.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    gc.collect()
    decoding(0)
    run = loader(cluster, {"photo": Image(SIDE)}, rank=0, world=1)
    next(iter(run))
    decoding(1)
    run.close()
    decoding(0)


def test_threads_are_at_least_one(cluster: Cluster) -> None:
    with pytest.raises(forebay.InvalidError, match="decode_threads=0: it must be at least 1"):
        loader(cluster, {"photo": Image()}, decode_threads=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": torch.int64}, "images are torch.uint8 or floats"),
        ({"mean": [0.5]}, "both of mean= and std="),
        ({"mean": [0.5], "std": [1.0]}, "are for floats"),
        ({"mean": [0.5], "std": [0.0], "dtype": torch.float32}, "std above 0"),
    ],
)
def test_settings_of_an_image_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(forebay.InvalidError, match=message):
        Image(8, **options)


def test_other_threads_run_while_images_are_decoded(cluster: Cluster) -> None:
    """Decoding does not hold the interpreter: another thread goes on meanwhile."""
    batch = next(iter(forebay.Loader(cluster.dataset("poster", columns=["photo"]), batch_size=8)))
    form = ImageForm(batch.schema, "photo", size=300, grey=False, shape=None, augment=None, crop_share=1.0)
    ended, ticks = threading.Event(), 0

    def tick() -> None:
        nonlocal ticks
        while not ended.is_set():
            time.sleep(0.001)
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    before = sys.getswitchinterval()
    # A thread that holds the interpreter is not asked to let others in.
    sys.setswitchinterval(60)
    try:
        began = ticks
        ImageDecoder(1, 1).decode(batch["photo"], form, range(8), None)
        assert ticks - began >= 5
    finally:
        sys.setswitchinterval(before)
        ended.set()
        thread.join()
