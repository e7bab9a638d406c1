"""A node with its S3 endpoint over a real S3 server, and a set of 200 MB that all clients read bit for bit."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

BIN = Path(os.environ["FOREBAY_BIN"])
MIB = 1 << 20
SIZES = [0, 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 60 * MIB] + [2 * MIB + n for n in range(40)]
ODD = ["sp ace+plus.bin", "uml\u00e4ut.bin", "100%.bin", "q?mark&amp.bin"]
ROWS = 400_000


@dataclass
class Gateway:
    """Where the endpoint is, and the data behind it."""

    endpoint: str
    key: str
    secret: str
    bucket: str
    region: str
    data: Path

    def files(self, folder: str) -> dict[str, Path]:
        """The objects under a folder, by their keys."""
        return {f"{folder}/{path.name}": path for path in sorted((self.data / folder).iterdir())}

    def environment(self) -> dict[str, str]:
        """For programs that take their settings from it."""
        mine = {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_REGION": self.region,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }
        others = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return {**others, **mine}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def table(first: int, count: int) -> pa.Table:
    dice = numpy.random.default_rng(first)
    ids = numpy.arange(first, first + count)
    return pa.table({"id": ids, "group": ids % 7, "x": dice.random(count), "noise": dice.integers(0, 1 << 62, count)})


def write(data: Path) -> None:
    dice = random.Random(1)
    for folder in ["set", "odd", "table", "tars", "tensors"]:
        (data / folder).mkdir()
    for n, size in enumerate(SIZES):
        (data / "set" / f"{n:03}-{size}.bin").write_bytes(dice.randbytes(size))
    for name in ODD:
        (data / "odd" / name).write_bytes(dice.randbytes(1000))
    for part in range(3):
        pq.write_table(table(part * ROWS, ROWS), data / "table" / f"{part}.parquet", row_group_size=50_000)
    for shard in range(2):
        with tarfile.open(data / "tars" / f"{shard}.tar", "w") as tar:
            for n in range(20):
                for ending, body in [("txt", f"sample {shard} {n}".encode()), ("bin", dice.randbytes(50_000))]:
                    about = tarfile.TarInfo(f"{shard:02}-{n:03}.{ending}")
                    about.size = len(body)
                    tar.addfile(about, BytesIO(body))
    floats = numpy.random.default_rng(2)
    save_file({f"w{n}": floats.random((500, 500), numpy.float32) for n in range(8)}, data / "tensors/m.safetensors")


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    data = tmp_path_factory.mktemp("data")
    write(data)
    command = [BIN / "forebay-test-cluster", "--data", data, "--nodes", "2", "--gateway"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    said = json.loads(process.stdout.readline())
    key, secret = said["gateway_key"]
    yield Gateway(said["gateways"][0], key, secret, said["bucket"], said["s3_region"], data)
    process.stdin.close()
    assert process.wait(60) == 0
