"""boto3, the aws command line, s3fs: what they read is what was written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import boto3
import pytest
import s3fs
from botocore.client import BaseClient
from botocore.config import Config
from botocore.exceptions import ClientError
from conftest import Gateway, digest


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> BaseClient:
    return boto3.client(
        "s3",
        endpoint_url=gateway.endpoint,
        region_name=gateway.region,
        aws_access_key_id=gateway.key,
        aws_secret_access_key=gateway.secret,
        config=Config(s3={"addressing_style": "path"}),
    )


def test_boto3_gets_and_downloads(gateway: Gateway, client: BaseClient, tmp_path: Path) -> None:
    for key, path in {**gateway.files("set"), **gateway.files("odd")}.items():
        wanted = path.read_bytes()
        got = client.get_object(Bucket=gateway.bucket, Key=key)
        assert digest(got["Body"].read()) == digest(wanted), key
        head = client.head_object(Bucket=gateway.bucket, Key=key)
        assert (head["ContentLength"], head["ETag"]) == (len(wanted), got["ETag"])
        # In parts, each with If-Match, several at once.
        client.download_file(gateway.bucket, key, str(tmp_path / "got"))
        assert (tmp_path / "got").read_bytes() == wanted, key


def test_boto3_lists_in_pages(gateway: Gateway, client: BaseClient) -> None:
    for operation in ["list_objects_v2", "list_objects"]:
        pages = client.get_paginator(operation).paginate(Bucket=gateway.bucket, PaginationConfig={"PageSize": 7})
        sizes = {entry["Key"]: entry["Size"] for page in pages for entry in page.get("Contents", [])}
        for folder in ["set", "odd", "table"]:
            for key, path in gateway.files(folder).items():
                assert sizes[key] == path.stat().st_size, key
    top = client.list_objects_v2(Bucket=gateway.bucket, Delimiter="/")
    assert "set/" in [prefix["Prefix"] for prefix in top["CommonPrefixes"]]
    assert gateway.bucket in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]
    client.head_bucket(Bucket=gateway.bucket)
    client.get_bucket_location(Bucket=gateway.bucket)


def test_boto3_is_told_what_goes_wrong(gateway: Gateway, client: BaseClient) -> None:
    for call, code in [
        (lambda: client.get_object(Bucket=gateway.bucket, Key="none"), "NoSuchKey"),
        (lambda: client.head_object(Bucket=gateway.bucket, Key="none"), "404"),
        (lambda: client.get_object(Bucket="another-bucket", Key="none"), "AccessDenied"),
        (lambda: client.put_object(Bucket=gateway.bucket, Key="new", Body=b"x" * 3_000_000), "AccessDenied"),
        (lambda: client.delete_object(Bucket=gateway.bucket, Key="set"), "AccessDenied"),
        (lambda: client.get_object_tagging(Bucket=gateway.bucket, Key="set"), "NotImplemented"),
    ]:
        with pytest.raises(ClientError) as e:
            call()
        assert e.value.response["Error"]["Code"] == code


def test_the_aws_command_line_copies_and_syncs(gateway: Gateway, tmp_path: Path) -> None:
    aws = [str(Path(sys.executable).parent / "aws"), "s3"]

    def run(*arguments: str) -> str:
        done = subprocess.run([*aws, *arguments], env=gateway.environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("sync", "--only-show-errors", f"s3://{gateway.bucket}/set/", str(tmp_path / "set"))
    for path in gateway.files("set").values():
        assert (tmp_path / "set" / path.name).read_bytes() == path.read_bytes(), path.name
    assert "download" not in run("sync", "--dryrun", f"s3://{gateway.bucket}/set/", str(tmp_path / "set"))
    key, path = next(iter(gateway.files("odd").items()))
    run("cp", "--only-show-errors", f"s3://{gateway.bucket}/{key}", str(tmp_path / "one"))
    assert (tmp_path / "one").read_bytes() == path.read_bytes()
    listed = run("ls", f"s3://{gateway.bucket}/set/")
    assert len(listed.splitlines()) == len(gateway.files("set"))
    assert gateway.bucket in run("ls")


def test_s3fs_reads_seeks_and_globs(gateway: Gateway) -> None:
    files = s3fs.S3FileSystem(
        key=gateway.key,
        secret=gateway.secret,
        endpoint_url=gateway.endpoint,
        client_kwargs={"region_name": gateway.region},
        skip_instance_cache=True,
    )
    for key, path in {**gateway.files("set"), **gateway.files("odd")}.items():
        assert digest(files.cat_file(f"{gateway.bucket}/{key}")) == digest(path.read_bytes()), key
    assert len(files.glob(f"{gateway.bucket}/set/*.bin")) == len(gateway.files("set"))
    key, path = max(gateway.files("set").items(), key=lambda file: file[1].stat().st_size)
    wanted = path.read_bytes()
    with files.open(f"{gateway.bucket}/{key}", "rb", block_size=1 << 20) as file:
        for start in [50_000_000, 3, 4 << 20, len(wanted) - 10]:
            file.seek(start)
            assert file.read(100_000) == wanted[start : start + 100_000]
    assert files.exists(f"{gateway.bucket}/set") and not files.exists(f"{gateway.bucket}/none")
