#!/usr/bin/env python3
"""Judges what deploy/demo.sh measured: prints the tables and one line per promise, writes report.json beside the figures.

    judge.py FOLDER VICTIM SILENT

Exits with 1 if a promise was not kept. Reads the trainer's reports (undisturbed.json, disturbed.json), what `forebay status`
said before, between and after the two runs, when the victim was killed and started again, and what Prometheus sees.
"""

import json
import os
import platform
import subprocess
import sys
from datetime import datetime
from pathlib import Path

# Bytes that may leave S3 per byte of the columns read; footers are counted apart.
COLD_RATIO = 1.02
# The longest that a step may wait when a node is killed: with replicas, and when its data must be read again.
STALL_MS = {True: 1000, False: 3000}
# The longest when a node hangs: it has to be silent for a while before it counts as gone.
SILENCE_MS = 2000

HEADER = ["epoch", "", "bytes from", "seconds", "samples/s", "data wait", "longest", "S3 requests", "S3 MB", "order digest"]
# Columns that a node's death spoils: they are differences of all nodes' counters. A restarted node counts from its
# start; one that does not answer is counted when it answers again, or not at all.
SPOILT = {"bytes from", "S3 requests", "S3 MB"}


class Run:
    """One training run: rank 0's report, when it said that an epoch was over, and what both ranks complained of."""

    def __init__(self, folder, name):
        self.report = json.loads((folder / f"{name}.json").read_text())
        self.epochs = self.report["epochs"]
        self.ends = {}
        self.complaints = []
        for log in (f"{name}.log", f"{name}.rank1.log"):
            for line in (folder / log).read_text().splitlines():
                time, _, text = line.partition(" ")
                if text.startswith("epoch ") and " from " in text:
                    self.ends[int(text.split()[1].split("/")[0])] = seconds(time)
                if text.startswith("forebay-train: ") or any(word in text for word in ("WARN", "ERROR", "panicked")):
                    self.complaints.append(text)

    def digests(self):
        return [epoch["order_digest"] for epoch in self.epochs]

    def contents(self):
        """Of the values. None where the run was not started with --verify."""
        return [epoch.get("content_digest") for epoch in self.epochs]

    def epoch_at(self, time):
        """The index of the epoch that was under way, and for how long; the first has no beginning here."""
        ended = [epoch for epoch, end in self.ends.items() if end < time]
        return len(ended), time - self.ends[len(ended)] if ended else 0.0

    def longest_wait(self, first, end=None):
        """Over the epochs from one index to another, in milliseconds."""
        return max(epoch["times"]["data_wait_ms_max"] for epoch in self.epochs[first:end])


class Nodes:
    """What `forebay status` said of each node that answered."""

    def __init__(self, folder, name):
        said = json.loads((folder / f"{name}.json").read_text())
        self.time = said.pop("time")
        self.nodes = said

    def replicas(self):
        """How many nodes are to hold each segment of the training data."""
        return next(iter(self.nodes.values()))["copies"][0]["replicas"]

    def count(self, counter, nodes=None):
        return sum(self.nodes[node]["counters"][counter] for node in nodes or self.nodes)


def seconds(time):
    """The engine's time stamps have nine digits after the point, which Python does not read."""
    return datetime.fromisoformat(time[:26].rstrip("Z") + "+00:00").timestamp()


def aligned(header, rows):
    """A table: words to the left, numbers to the right."""
    words = {"epoch", "", "bytes from", "order digest"}
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [
            cell.ljust(width) if title in words else cell.rjust(width) for title, cell, width in zip(header, row, widths)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def cells(epoch, what):
    return [
        str(epoch["epoch"] + 1),
        what,
        epoch["source"],
        f"{epoch['seconds']:.1f}",
        f"{epoch['samples_per_s']:.0f}",
        f"{100 * epoch['data_wait_share']:.1f} %",
        f"{epoch['times']['data_wait_ms_max']:.0f} ms",
        str(epoch["s3_requests"]),
        f"{epoch['s3_bytes'] / 1e6:.2f}",
        epoch["order_digest"],
    ]


def main():
    folder, victim, silent = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    calm, fault = Run(folder, "undisturbed"), Run(folder, "disturbed")
    before, between, after = (Nodes(folder, name) for name in ("before", "between", "after"))
    killed, revived, frozen = (float((folder / name).read_text()) for name in ("killed", "revived", "frozen"))
    (kill_epoch, kill_s), (freeze_epoch, freeze_s) = fault.epoch_at(killed), fault.epoch_at(frozen)
    others = [node for node in after.nodes if node != victim]

    print("\nUndisturbed")
    print(aligned(HEADER, [cells(epoch, "warm" if epoch["epoch"] else "cold") for epoch in calm.epochs]))
    requests, s3_bytes = (between.count(c) - before.count(c) for c in ("s3_requests", "s3_bytes"))
    print(f"forebay status counts {requests} requests and {s3_bytes / 1e6:.2f} MB of column data from S3")
    print(
        f"\nWith {victim} killed {kill_s:.1f} s into epoch {kill_epoch + 1} and started again {revived - killed:.1f} s later, "
        f"and {silent} frozen for 5 s, {freeze_s:.1f} s into epoch {freeze_epoch + 1}"
    )
    what = {fault.epoch_at(revived)[0]: "back", kill_epoch: "killed", freeze_epoch: "frozen"}
    kept = [i for i, title in enumerate(HEADER) if title not in SPOILT]
    rows = [cells(epoch, what.get(epoch["epoch"], "")) for epoch in fault.epochs]
    print(aligned([HEADER[i] for i in kept], [[row[i] for i in kept] for row in rows]))
    read_anew = after.count("s3_bytes", others) - between.count("s3_bytes", others)
    read_back = after.count("s3_bytes", [victim])
    served_back = after.count("rows_served", [victim])
    print(f"forebay status counts {(read_anew + read_back) / 1e6:.2f} MB of column data from S3; each segment is held by {between.replicas()} nodes")

    cold, warm = calm.epochs[0], calm.epochs[1:]
    ratio = cold["s3_bytes"] / cold["projected_bytes"]
    warm_requests = sum(epoch["s3_requests"] + epoch["s3_footer_requests"] for epoch in warm)
    warm_decoded = sum(epoch["parquet_bytes_decoded"] for epoch in warm)
    replicas = between.replicas()
    bar = STALL_MS[replicas > 1]
    stall, silence = fault.longest_wait(kill_epoch, freeze_epoch), fault.longest_wait(freeze_epoch)
    up = json.loads((folder / "up.json").read_text())["data"]["result"]
    up = sum(result["value"][1] == "1" for result in up)
    topology = [node["node"] for node in next(iter(after.nodes.values()))["nodes"] if node["answers"]]
    hashes = {name: sorted(set(run.report["parameter_hashes"])) for name, run in (("calm", calm), ("fault", fault))}
    complaints = calm.complaints + fault.complaints
    alone = json.loads((folder / "alone.json").read_text())["epochs"][0]
    alike = sum(a == b for a, b in zip(calm.digests(), fault.digests()))
    same_values = sum(a is not None and a == b for a, b in zip(calm.contents(), fault.contents()))
    alone_values = alone.get("content_digest")

    checks = [
        ("the cold epoch takes each byte from S3 once", f"{ratio:.4f} times (at most {COLD_RATIO})", 1 <= ratio <= COLD_RATIO),
        ("warm epochs send no request to S3", f"{warm_requests} requests", warm_requests == 0),
        ("warm epochs decode no Parquet", f"{warm_decoded} bytes", warm_decoded == 0),
        (
            "forebay status and the trainer count alike",
            f"{s3_bytes} and {sum(epoch['s3_bytes'] for epoch in calm.epochs)} bytes",
            s3_bytes == sum(epoch["s3_bytes"] for epoch in calm.epochs),
        ),
        (
            "both faults came in the middle of an epoch",
            f"{kill_s:.1f} s and {freeze_s:.1f} s into one",
            0 < kill_epoch < freeze_epoch < len(fault.epochs) and min(kill_s, freeze_s) > 0.1,
        ),
        ("no rank complains of anything", f"{len(complaints)} lines {' | '.join(complaints[:3])}".strip(), not complaints),
        (f"a killed node costs a wait of at most {bar} ms", f"{stall:.0f} ms", stall <= bar),
        (f"a frozen node costs a wait of at most {SILENCE_MS} ms", f"{silence:.0f} ms", silence <= SILENCE_MS),
        (
            "the same samples in the same order as undisturbed",
            f"{alike} of {len(calm.epochs)} order digests equal",
            alike == len(calm.epochs) == len(fault.epochs),
        ),
        (
            "the same values as undisturbed",
            f"{same_values} of {len(calm.epochs)} content digests equal",
            same_values == len(calm.epochs) == len(fault.epochs),
        ),
        ("one reader alone sees the order of two ranks", alone["order_digest"], alone["order_digest"] == calm.digests()[0]),
        (
            "and their values",
            f"content digest {alone_values}",
            alone_values is not None and alone_values == calm.contents()[0],
        ),
        ("the trained parameters are the same, bit for bit", f"{hashes['calm']} and {hashes['fault']}", hashes["calm"] == hashes["fault"]),
        ("the others read from S3 no more than what died" if replicas == 1 else "the others read nothing from S3",
         f"{read_anew} bytes", read_anew <= (cold["s3_bytes"] if replicas == 1 else 0)),
        (f"{victim} is back with what it held", f"{served_back} rows served, {read_back} bytes from S3", served_back > 0 and read_back == 0),
        ("all nodes answer at the end", " ".join(topology), sorted(topology) == ["cache-1", "cache-2", "cache-3"]),
        ("Prometheus sees all nodes", f"{up} up", up == 3),
    ]
    print()
    for claim, measured, passed in checks:
        print(f"{'PASS' if passed else 'FAIL'}  {claim}: {measured}")

    rows = [
        {"name": "cold_epoch_s", "value": cold["seconds"], "unit": "s"},
        {"name": "warm_epoch_s", "value": sorted(epoch["seconds"] for epoch in warm)[len(warm) // 2], "unit": "s"},
        {"name": "cold_s3_amplification", "value": ratio, "unit": "ratio"},
        {"name": "kill_stall_ms", "value": stall, "unit": "ms"},
        {"name": "freeze_stall_ms", "value": silence, "unit": "ms"},
        {"name": "faults_s3_bytes", "value": read_anew + read_back, "unit": "B"},
    ]
    report = {
        "name": "compose-demo",
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip(),
        "machine": f"{platform.platform()}, {os.cpu_count()} cores",
        "settings": calm.report["settings"],
        "rows": rows,
        "checks": [{"claim": claim, "measured": measured, "passed": passed} for claim, measured, passed in checks],
    }
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    print(f"report: {folder / 'report.json'}")
    return 0 if all(passed for _, _, passed in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
