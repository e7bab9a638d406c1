"""Command line tools: rclone and s3cmd, where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import Gateway


def run(gateway: Gateway, *command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, env=gateway.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(gateway: Gateway, folder: Path) -> None:
    for path in gateway.files("set").values():
        assert (folder / path.name).read_bytes() == path.read_bytes(), path.name


def test_rclone_copies_and_checks(gateway: Gateway, tmp_path: Path) -> None:
    config = tmp_path / "rclone.conf"
    config.write_text(
        f"[cache]\ntype = s3\nprovider = Other\nendpoint = {gateway.endpoint}\nregion = {gateway.region}\n"
        f"access_key_id = {gateway.key}\nsecret_access_key = {gateway.secret}\n"
    )
    rclone = ["rclone", "--config", str(config)]
    source = f"cache:{gateway.bucket}/set"
    run(gateway, *rclone, "copy", source, str(tmp_path / "set"))
    check(gateway, tmp_path / "set")
    run(gateway, *rclone, "check", source, str(tmp_path / "set"))
    assert len(run(gateway, *rclone, "lsf", source).splitlines()) == len(gateway.files("set"))


def test_s3cmd_gets_and_lists(gateway: Gateway, tmp_path: Path) -> None:
    host = gateway.endpoint.removeprefix("http://")
    keys = [f"--access_key={gateway.key}", f"--secret_key={gateway.secret}", "--config=/dev/null"]
    s3cmd = ["s3cmd", f"--host={host}", "--host-bucket=", "--no-ssl", f"--region={gateway.region}", *keys]
    (tmp_path / "set").mkdir()
    run(gateway, *s3cmd, "get", "--recursive", "--quiet", f"s3://{gateway.bucket}/set/", str(tmp_path / "set/"))
    check(gateway, tmp_path / "set")
    listed = run(gateway, *s3cmd, "ls", f"s3://{gateway.bucket}/set/")
    assert len(listed.splitlines()) == len(gateway.files("set"))
