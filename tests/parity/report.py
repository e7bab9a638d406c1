"""The report of `make parity`, in the form of all benchmark reports: report.py FOLDER STEPS ROUNDS, JSON on stdout.

The first ten steps of a run are left out: buckets are rebuilt and memory is taken in them.
"""

import glob
import json
import platform
import statistics
import subprocess
import sys

WARM_UP = 10

# Of both halves: see train.py and forebay-parity.rs.
OPTIMIZER = {"name": "sgd", "momentum": 0.9, "foreach": True, "fused": False}


def medians(folder, model, half):
    files = sorted(glob.glob(f"{folder}/{model}.{half}.steps.*"))
    steps = [[float(line) for line in open(file)][WARM_UP:] for file in files]
    return [statistics.median(run) for run in steps]


def main(folder, steps, rounds):
    rows, worst = [], None
    for model in ["convnet", "resnet18"]:
        rust, python = medians(folder, model, "rust"), medians(folder, model, "python")
        ratio = statistics.median(rust) / statistics.median(python)
        worst = max(ratio, worst or ratio)
        rows.append(
            {
                "name": f"parity_step_ms_{model}",
                "value": statistics.median(rust),
                "unit": "ms",
                "n": len(rust),
                "min": min(rust),
                "max": max(rust),
                "floor": "the same step in Python",
                "floor_value": statistics.median(python),
                "ratio": ratio,
            }
        )
        hashes = {line.strip() for file in glob.glob(f"{folder}/{model}.*.hashes") for line in open(file)}
        equal = float(len(hashes) == 1)
        rows.append({"name": f"parity_bits_{model}", "value": equal, "unit": "equal", "n": 2 * rounds, "min": equal, "max": equal})
    rows.insert(0, {"name": "parity_step_time_ratio", "value": worst, "unit": "Rust / Python, the worse model", "n": rounds, "min": min(r["ratio"] for r in rows if "ratio" in r), "max": worst})
    for row in rows:
        against = f"   {100 * row['ratio']:.1f} % of {row['floor_value']:.2f} ({row['floor']})" if "ratio" in row else ""
        print(f"{row['name']:26} {row['value']:10.3f} {row['unit']}{against}", file=sys.stderr)
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
    settings = {"ranks": 2, "steps": steps, "rounds": rounds, "backend": "gloo", "threads": 1, "optimizer": OPTIMIZER}
    report = {"name": "parity", "commit": commit or "unknown", "machine": platform.processor() or platform.machine()}
    print(json.dumps({**report, "settings": settings, "rows": rows}, indent=2))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
