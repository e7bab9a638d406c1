"""Charts of reports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Cluster, needs

import forebay
import forebay.plot


@pytest.fixture(scope="module")
def report(cluster: Cluster) -> Any:
    return cluster.forebay("epoch", cluster.uri("other"), "--epochs", "3", "--batch", "10")


def test_cold_against_warm(report: Any, tmp_path: Path) -> None:
    needs("matplotlib").use("agg")
    (tmp_path / "report.json").write_text(json.dumps(report))
    for given in [report, tmp_path / "report.json", str(tmp_path / "report.json")]:
        axes = forebay.plot.epoch(given)
        # By color: the first epoch is cold, the others are warm.
        heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
        speeds = [row["samples_per_s"] for row in report["epochs"]]
        assert heights == [speeds[:1], speeds[1:]]
        texts = [text.get_text() for text in axes.texts]
        assert len(texts) == 3 and "from S3" in texts[0] and "from S3" not in texts[1] + texts[2]
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["cold", "warm"]
        axes.figure.savefig(tmp_path / "chart.png")
        assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    assert forebay.plot.epoch(report, axes=axes) is axes
    # In the order of the report, whatever comes from the object store.
    rows = [{**row, "s3_bytes": at % 2} for at, row in enumerate(report["epochs"])]
    axes = forebay.plot.epoch({"epochs": rows})
    middles = [[round(bar.get_x() + bar.get_width() / 2) for bar in bars] for bars in axes.containers]
    assert middles == [[1], [0, 2]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "2"]


@pytest.mark.parametrize("wrong", [{}, {"epochs": []}, {"epochs": [{"epoch": 0}]}, {"epochs": 3}])
def test_what_is_no_report_is_refused(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(forebay.InvalidError, match="no report of epochs: pass what `forebay epoch"):
        forebay.plot.epoch(wrong)
    (tmp_path / "text").write_text("no JSON")
    with pytest.raises(forebay.InvalidError, match="text is no report"):
        forebay.plot.epoch(tmp_path / "text")


def test_without_matplotlib_it_is_a_clear_error(report: Any, tmp_path: Path) -> None:
    """In a process that finds none, whether it is installed here or not."""
    (tmp_path / "report.json").write_text(json.dumps(report))
    script = f"""
import sys
sys.modules["matplotlib"] = None
import forebay.plot
try:
    forebay.plot.epoch({str(tmp_path / "report.json")!r})
except forebay.Error as e:
    print(e)
"""
    said = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    assert said == "forebay.plot draws with matplotlib, which is not installed: pip install matplotlib\n"
