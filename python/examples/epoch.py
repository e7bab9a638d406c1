"""Reads an epoch of a dataset without a cache, and prints its order digest: epoch.py URI"""

import sys

import forebay

dataset = forebay.dataset(sys.argv[1], direct=True)
with forebay.Loader(dataset, batch_size=500, seed=1) as loader:
    samples = sum(len(batch) for batch in loader)
    assert samples == len(loader) * 500, samples
    print(loader.digest)
