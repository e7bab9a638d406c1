"""Where the environment variable `CI` is set, a test that skips itself fails: there all that tests need is installed, and a
skip would hide that something is not. Only where CUDA decides, by a device or for want of one, may a test be skipped."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

Making = Generator[None, pytest.TestReport, pytest.TestReport]
Collecting = Generator[None, pytest.CollectReport, pytest.CollectReport]


def _refused(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Makes a failure of a skip."""
    if not report.skipped or hasattr(report, "wasxfail") or os.environ.get("CI", "false") in ("", "false"):
        return
    # Of a skip: the file, the line and why.
    why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if "cuda" not in why.lower():
        report.outcome = "failed"
        report.longrepr = f"skipped where CI is set: {why.removeprefix('Skipped: ')}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Making:
    report = yield
    if item.get_closest_marker("cuda") is None:
        _refused(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Collecting:
    """Of a module that skips itself as a whole."""
    report = yield
    _refused(report)
    return report
