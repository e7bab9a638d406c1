"""What training reads: tars by webdataset, tensors by safetensors, PyTorch's S3 connector."""

from __future__ import annotations

import shlex
import struct
import sys
import json
from pathlib import Path

import numpy
import pytest
import s3fs
from conftest import Gateway
from safetensors.numpy import load_file


def test_webdataset_reads_tars(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    wds = pytest.importorskip("webdataset")
    for name, value in gateway.environment().items():
        monkeypatch.setenv(name, value)
    aws = shlex.quote(str(Path(sys.executable).parent / "aws"))
    urls = f"pipe:{aws} s3 cp s3://{gateway.bucket}/tars/{{0..1}}.tar -"
    samples = list(wds.WebDataset(urls, shardshuffle=False).decode())
    assert [sample["txt"] for sample in samples] == [f"sample {shard} {n}" for shard in range(2) for n in range(20)]
    assert all(len(sample["bin"]) == 50_000 for sample in samples)


def test_safetensors_are_read_tensor_by_tensor(gateway: Gateway) -> None:
    files = s3fs.S3FileSystem(key=gateway.key, secret=gateway.secret, endpoint_url=gateway.endpoint)
    (key, path), = gateway.files("tensors").items()
    place = f"{gateway.bucket}/{key}"
    wanted = load_file(path)
    length = struct.unpack("<Q", files.cat_file(place, start=0, end=8))[0]
    header = json.loads(files.cat_file(place, start=8, end=8 + length))
    header.pop("__metadata__", None)
    assert header.keys() == wanted.keys()
    for name, about in header.items():
        start, end = (8 + length + offset for offset in about["data_offsets"])
        got = numpy.frombuffer(files.cat_file(place, start=start, end=end), numpy.float32)
        assert (got.reshape(about["shape"]) == wanted[name]).all(), name


def test_the_s3_connector_of_torch_reads(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    connector = pytest.importorskip("s3torchconnector")
    for name, value in gateway.environment().items():
        monkeypatch.setenv(name, value)
    config = connector.S3ClientConfig(force_path_style=True)
    uri = f"s3://{gateway.bucket}/set/"
    arguments = {"region": gateway.region, "endpoint": gateway.endpoint, "s3client_config": config}
    wanted = {key: path.read_bytes() for key, path in gateway.files("set").items()}
    for kind in [connector.S3MapDataset, connector.S3IterableDataset]:
        dataset = kind.from_prefix(uri, **arguments)
        got = {item.key: item.read() for item in (dataset[n] for n in range(len(dataset)))} if kind is connector.S3MapDataset else {item.key: item.read() for item in dataset}
        assert got == wanted
