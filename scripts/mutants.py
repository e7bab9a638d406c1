#!/usr/bin/env python3
"""Changes the code in small ways, one at a time, and says which changes no unit test notices. `make mutants` runs it.

    scripts/mutants.py [--list] [--shard K/N] [--only REGEX] [CRATE...]    all crates below, or those named

cargo-mutants makes the changes (`.cargo/mutants.toml` says in which files) and runs the unit tests of the crate that has
been changed. Its results are in target/mutants/CRATE/mutants.out. A change that was missed must be in
tests/mutants/equivalent.txt, with the reason why no test can notice it: else the crate fails, and so it does for a line of
that list whose change was noticed or is no longer made. A crate takes from half an hour to some hours; --shard 0/4 tries a
quarter of it, one change of each four, --only 'ring.rs' one file.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests/mutants/equivalent.txt"
WORK = ROOT / "target/mutants"
VERSION = "27.1.0"
CRATES = {
    "proto": "forebay-proto",
    "dataset": "forebay-dataset",
    "cache-server": "forebay-server",
    "client": "forebay-client",
    "trainer": "forebay-train",
}


def tool() -> str:
    """Where cargo-mutants is; installed beside its results if it is not there."""
    for program in [shutil.which("cargo-mutants"), WORK / "tools/bin/cargo-mutants"]:
        if program and Path(program).exists():
            return str(program)
    print(f"mutants: installing cargo-mutants {VERSION} into target/mutants/tools", file=sys.stderr)
    install = ["cargo", "install", "cargo-mutants", "--locked", "--version", VERSION, "--root", str(WORK / "tools")]
    subprocess.run(install, check=True)
    return str(WORK / "tools/bin/cargo-mutants")


def accepted(crate: str) -> Counter[str]:
    """The changes of a crate that no test can notice: each stands there with its reason, once for each place of it."""
    known: Counter[str] = Counter()
    for number, line in enumerate(LIST.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, bar, reason = line.partition(" | ")
        if not bar or not reason.strip():
            sys.exit(f"mutants: {LIST}:{number}: needs a change, ' | ' and the reason why no test can notice it")
        if name.startswith(f"{crate}/"):
            known[name] += 1
    return known


def nameless(line: str) -> str:
    """A change as cargo-mutants names it, without the numbers of line and column, which any edit moves."""
    return re.sub(r"^([^:]+):\d+:\d+: ", r"\1: ", line.strip())


def judge(crate: str, out: Path, is_whole: bool) -> bool:
    """Holds what was missed against the list; false if they differ."""
    lines = {kind: (out / f"{kind}.txt").read_text().splitlines() for kind in ["missed", "caught", "timeout", "unviable"]}
    counts = ", ".join(f"{len(found)} {kind}" for kind, found in lines.items())
    known, missed = accepted(crate), Counter(map(nameless, lines["missed"]))
    wrong = [line for line in lines["missed"] if missed[nameless(line)] > known[nameless(line)]]
    tried = set(map(nameless, lines["caught"] + lines["timeout"])) | set(missed)
    stale = [name for name in known if missed[name] < known[name] and (is_whole or name in tried)]
    for line in wrong:
        print(f"  no test notices: {line}")
    for name in stale:
        print(f"  take it off {LIST.relative_to(ROOT)}, a test notices it or it is gone: {name}")
    outcomes = json.loads((out / "outcomes.json").read_text())
    is_sound = outcomes["outcomes"] and outcomes["outcomes"][0]["summary"] == "Success"
    if not is_sound:
        print("  the tests fail on sound code")
    kept = is_sound and not wrong and not stale
    # One that never ends is noticed too.
    noticed = len(lines["caught"]) + len(lines["timeout"])
    share = noticed / max(1, noticed + len(lines["missed"]))
    print(f"{'PASS' if kept else 'FAIL'}  {crate}: {share:.1%} noticed: {counts}; {known.total()} of the missed are accepted")
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description="Which small changes of the code does no unit test notice?")
    parser.add_argument("--list", action="store_true", help="only say which changes there are")
    parser.add_argument("--shard", help="a part of them, such as 0/4")
    parser.add_argument("--only", metavar="REGEX", help="only changes whose file, or what they change, is like this")
    parser.add_argument("crates", nargs="*", metavar="CRATE", help=f"of {', '.join(CRATES)}; all unless given")
    arguments = parser.parse_args()
    if unknown := set(arguments.crates) - set(CRATES):
        parser.error(f"no such crate: {', '.join(sorted(unknown))}; there are {', '.join(CRATES)}")
    # Told to end, it ends cargo-mutants too, which goes on otherwise.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # The copies that are tested do not have what git ignores; nor do they share the target folder of other builds.
    torch = ROOT / ".torch/torch"
    environment = os.environ | {"LIBTORCH": str(torch), "LD_LIBRARY_PATH": str(torch / "lib"),
                                "CARGO_TARGET_DIR": str(WORK / "build")}
    part = ["--re", arguments.only] if arguments.only else []
    # Not one after the other: a part of them is then a fair sample of all files.
    part += ["--shard", arguments.shard, "--sharding", "round-robin"] if arguments.shard else []
    kept = True
    for crate in arguments.crates or CRATES:
        out = WORK / crate
        out.mkdir(parents=True, exist_ok=True)
        command = [tool(), "mutants", "--package", CRATES[crate], "--output", str(out), *part]
        if arguments.list:
            subprocess.run([*command, "--list"], cwd=ROOT, env=environment, check=True)
            continue
        done = subprocess.run([*command, "--no-shuffle"], cwd=ROOT, env=environment)
        # 0: all were noticed; 2: some were missed; 3: some never ended.
        if done.returncode not in (0, 2, 3):
            print(f"FAIL  {crate}: cargo-mutants ended with {done.returncode}")
            kept = False
        else:
            kept &= judge(crate, out / "mutants.out", is_whole=not part)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
