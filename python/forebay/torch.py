"""Training batches as dicts of torch tensors that share the loader's memory.

>>> import forebay.torch
>>> loader = forebay.torch.Loader("s3://bucket/train", batch_size=256, seed=1)  # doctest: +SKIP
>>> for epoch in range(3):  # doctest: +SKIP
...     for batch in loader:
...         step(batch["image"], batch["label"])

`Loader` is what a training loop iterates over. `IterableDataset`, `MapDataset` and `Sampler` are for programs that insist on
a `torch.utils.data.DataLoader`.
"""

from __future__ import annotations

from forebay._images import Image
from forebay._tensors import Ragged, TensorOptions
from forebay._torch_iterable import IterableDataset
from forebay._torch_loader import Batch, Loader
from forebay._torch_map import MapDataset, Sampler

__all__ = ["Batch", "Image", "IterableDataset", "Loader", "MapDataset", "Ragged", "Sampler", "TensorOptions"]

for _public in (Batch, Image, IterableDataset, Loader, MapDataset, Ragged, Sampler):
    # The files behind this one are nobody's business.
    _public.__module__ = __name__
