"""Skips, which are failures where `CI` is set."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SKIPPED = """
import pytest

@pytest.mark.skip(reason="too long")
def test_marked(): pass

@pytest.mark.skipif(True, reason="too old")
def test_marked_by_a_condition(): pass

def test_by_itself(): pytest.skip("too hot")

def test_by_an_import(): pytest.importorskip("no_such_module")

@pytest.fixture
def nothing(): pytest.skip("too cold")

def test_by_a_fixture(nothing): pass

@pytest.mark.skipif(True, reason="there is a CUDA device")
def test_of_a_machine_without_cuda(): pass

@pytest.mark.cuda
def test_of_cuda(): pytest.skip("no device")

@pytest.mark.xfail
def test_that_must_fail(): assert False

def test_that_runs(): pass
"""


HERE = {"passed": 1, "xfailed": 1, "skipped": 8}
# Marks, fixtures and the module that skips itself as a whole are errors.
IN_CI = {"passed": 1, "xfailed": 1, "skipped": 2, "failed": 2, "errors": 4}


@pytest.mark.parametrize(("where", "expected"), [("", HERE), ("false", HERE), ("true", IN_CI)])
def test_skips_are_failures_in_ci(tmp_path: Path, where: str, expected: dict[str, int]) -> None:
    (tmp_path / "test_skipped.py").write_text(SKIPPED)
    (tmp_path / "test_whole.py").write_text('import pytest\npytest.skip("not here", allow_module_level=True)\n')
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = cuda: needs a CUDA device\n")
    command = [sys.executable, "-m", "pytest", "-p", "skips", "-p", "no:cacheprovider", "--continue-on-collection-errors", "-rA"]
    here = f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "CI": where, "PYTHONPATH": here, "PYTEST_ADDOPTS": ""}
    run = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, timeout=60)
    said = run.stdout.rpartition("\n=")[2]
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", said.partition(" in ")[0])}
    assert counts == expected and (run.returncode == 0) == (expected is HERE), run.stdout
    for why in ["too long", "too old", "too hot", "too cold", "could not import 'no_such_module'", "not here"]:
        assert (f"skipped where CI is set: {why}" in run.stdout) == (expected is IN_CI), run.stdout
