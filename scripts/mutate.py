#!/usr/bin/env python3
"""Sabotages the code, one patch of tests/mutations at a time, and says which test noticed. `make mutate` runs it.

    scripts/mutate.py [--list] [--skip-sound] [--together] [NAME...]    all sabotages, or those named

Everything happens in a copy of the working tree, target/mutate/tree, built in target/mutate/build: the first time
takes as long as a fresh build, later ones compile what changed. Each patch begins with lines `Sabotage: ...` and
`Noticed by: KIND NAME`, one for each test. KIND is a test target of tests/ (`e2e`, `source`, ..) or a library
(`forebay_server`, ..), whose unit tests are meant. All tests whose names contain NAME are run.

First the named tests are run as they are: a test that fails anyway notices nothing. A sabotage passes if one of its
tests runs and fails. It fails if all tests pass, if the patch no longer applies, if the code no longer compiles, if no
test has the name, or if the tests hang.
"""

import argparse
import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATCHES = ROOT / "tests/mutations"
WORK = ROOT / "target/mutate"
TREE = WORK / "tree"
# Test targets of tests/, and where the unit tests of libraries run.
TARGETS = {"e2e", "source", "clouds", "deploy"}
FOLDERS = {
    "forebay_proto": "proto",
    "forebay_dataset": "dataset",
    "forebay_server": "cache-server",
    "forebay_client": "client",
}
# What setup puts beside the code, for tests that need it.
TOOLS = [".torch", ".venv", ".garage", ".real"]
# The programs that end-to-end tests start.
PROGRAMS = ["--bin", "forebay-server", "--bin", "forebay"]
BUILD_S = 3600
TEST_S = 1200


class BuildFailed(Exception):
    """With the compiler's errors."""


@dataclass
class Mutation:
    name: str
    text: str
    sabotage: str = ""
    tests: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Mutation":
        mutation = cls(path.stem, path.read_text())
        for line in mutation.text.split("\n--- ", 1)[0].splitlines():
            if line.startswith("Sabotage: "):
                mutation.sabotage = line.removeprefix("Sabotage: ")
            elif line.startswith("Noticed by: "):
                kind, name = line.removeprefix("Noticed by: ").split()
                mutation.tests.append((kind, name))
        if not mutation.sabotage or not mutation.tests:
            sys.exit(f"mutate: {path}: needs a line 'Sabotage: ...' and a line 'Noticed by: KIND NAME'")
        return mutation

    def patch(self, *flags: str) -> str | None:
        """Applies it to the copy; why that failed."""
        command = ["patch", "--directory", str(TREE), "--strip=1", "--fuzz=0", "--batch",
                   "--no-backup-if-mismatch", *flags]
        done = subprocess.run(command, input=self.text, text=True, capture_output=True)
        return None if done.returncode == 0 else (done.stdout + done.stderr).strip()


def copy_tree() -> None:
    """Makes the copy equal to the working tree. Files that are equal keep their times, so they are not built again."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, check=True, text=True).stdout.split("\0")
    wanted = {name for name in names if name and (ROOT / name).is_file()}
    TREE.mkdir(parents=True, exist_ok=True)
    for path in [path for path in TREE.rglob("*") if path.is_file() or path.is_symlink()]:
        name = str(path.relative_to(TREE))
        if name not in wanted and name not in TOOLS:
            path.unlink()
    for name in wanted:
        source, copy = ROOT / name, TREE / name
        if not copy.exists() or not filecmp.cmp(source, copy, shallow=False):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            shutil.copymode(source, copy)
    for name in TOOLS:
        if (ROOT / name).exists() and not (TREE / name).exists():
            (TREE / name).symlink_to((ROOT / name).resolve())


def run(command: list[str], folder: Path, limit_s: int) -> tuple[int | None, str, str]:
    """Status, standard output and error output; no status after the time limit."""
    environment = os.environ | {"CARGO_TARGET_DIR": str(WORK / "build"), "CARGO_INCREMENTAL": "1"}
    # As cargo sets it for the tests of what links libtorch.
    environment["LD_LIBRARY_PATH"] = str(TREE / ".torch/torch/lib")
    try:
        done = subprocess.run(command, cwd=folder, env=environment, text=True, timeout=limit_s, capture_output=True)
    except subprocess.TimeoutExpired:
        return None, "", f"not done after {limit_s} s"
    return done.returncode, done.stdout, done.stderr


def build(tests: list[tuple[str, str]]) -> dict[str, Path]:
    """Builds what the tests need; their executables by kind. Raises `BuildFailed`."""
    kinds = {kind for kind, _ in tests}
    targets = sorted(kind for kind in kinds if kind in TARGETS)
    steps = []
    if targets:
        programs = PROGRAMS if "e2e" in targets else []
        steps.append(["build", *programs, *(word for target in targets for word in ("--test", target))])
    if kinds - TARGETS:
        steps.append(["test", "--no-run", "--lib"])
    executables = {}
    for step in steps:
        command = ["cargo", *step, "--workspace", "--message-format=json-render-diagnostics"]
        status, output, errors = run(command, TREE, BUILD_S)
        if status != 0:
            told = [line for line in errors.splitlines() if line.startswith("error")]
            raise BuildFailed("; ".join(told[:3]) or errors[-500:])
        for line in output.splitlines():
            artifact = json.loads(line)
            if artifact.get("executable") and artifact["profile"]["test"]:
                executables[artifact["target"]["name"]] = Path(artifact["executable"])
    return executables


def test(executables: dict[str, Path], kind: str, name: str) -> tuple[str, str]:
    """What became of the tests of a name: `passed`, `failed`, `none` or `hung`; and which failed."""
    if kind not in executables:
        return "none", f"there is no test target {kind}"
    folder = TREE / FOLDERS.get(kind, "tests")
    status, output, errors = run([str(executables[kind]), name], folder, TEST_S)
    if status is None:
        return "hung", errors
    failed = sorted(set(re.findall(r"^test (\S+) .*?\.\.\. FAILED$", output, re.MULTILINE)))
    if status != 0:
        return "failed", " ".join(failed) or f"the tests broke off: {(output + errors)[-300:]}"
    count = sum(int(n) for n in re.findall(r"^test result: .*? (\d+) passed", output, re.MULTILINE))
    return ("passed", "") if count else ("none", f"no test of {kind} has the name {name}")


def sound(tests: list[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """The tests that do not pass as they are, and why."""
    executables = build(tests)
    unsound = {}
    for kind, name in tests:
        outcome, what = test(executables, kind, name)
        print(f"as it is: {kind} {name}: {outcome} {what}", flush=True)
        if outcome != "passed":
            unsound[kind, name] = f"{outcome}: {what}"
    return unsound


def judge(mutations: list[Mutation], unsound: dict[tuple[str, str], str]) -> dict[str, tuple[bool, str]]:
    """Of some sabotages that are applied at once: whether each was noticed, and by which test, or why not."""
    verdicts, applied = {}, []
    for mutation in mutations:
        for kind, name in mutation.tests:
            if (kind, name) in unsound:
                why = f"{kind} {name} does not pass without a sabotage: {unsound[kind, name]}"
                verdicts[mutation.name] = (False, why)
        why = mutation.patch("--dry-run")
        if why is not None:
            verdicts[mutation.name] = (False, f"the patch does not apply: {why}")
    rest = [mutation for mutation in mutations if mutation.name not in verdicts]
    try:
        for mutation in rest:
            if mutation.patch() is not None:
                sys.exit(f"mutate: {mutation.name} does not apply beside the others: try it alone")
            applied.append(mutation)
        executables = build([test for mutation in rest for test in mutation.tests]) if rest else {}
        verdicts |= {mutation.name: noticed(mutation, executables) for mutation in rest}
    except BuildFailed as failed:
        verdicts |= {mutation.name: (False, f"the sabotaged code does not build: {failed}") for mutation in rest}
    finally:
        for mutation in reversed(applied):
            if (why := mutation.patch("--reverse")) is not None:
                sys.exit(f"mutate: {mutation.name} cannot be taken back: {why}")
    return verdicts


def noticed(mutation: Mutation, executables: dict[str, Path]) -> tuple[bool, str]:
    """Whether one of a sabotage's tests fails, and which."""
    outcomes = [(kind, *test(executables, kind, name)) for kind, name in mutation.tests]
    caught = [f"{kind} {what}" for kind, outcome, what in outcomes if outcome == "failed"]
    others = [f"{kind}: {outcome} {what}".strip() for kind, outcome, what in outcomes if outcome != "failed"]
    return (True, "; ".join(caught)) if caught else (False, "nobody noticed: " + "; ".join(others))


def main() -> None:
    parser = argparse.ArgumentParser(description="Sabotages the code and says which test noticed.")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    parser.add_argument("--skip-sound", action="store_true", help="do not run the tests without a sabotage first")
    together = "apply them all at once: one build, but a test may fail for another's sake"
    parser.add_argument("--together", action="store_true", help=together)
    parser.add_argument("names", nargs="*", help="sabotages; none: all")
    options = parser.parse_args()
    every = {path.stem: Mutation.read(path) for path in sorted(PATCHES.glob("*.patch"))}
    unknown = [name for name in options.names if name not in every]
    if unknown:
        sys.exit(f"mutate: there is no sabotage {' '.join(unknown)}: see --list")
    chosen = [every[name] for name in options.names or every]
    if options.list:
        for mutation in chosen:
            tests = ", ".join(" ".join(test) for test in mutation.tests)
            print(f"{mutation.name:<24}{mutation.sabotage}\n{'':<24}{tests}")
        return
    copy_tree()
    # Those of one crate one after the other: a patch that is taken back is compiled again too.
    chosen.sort(key=lambda mutation: mutation.text.split("\n--- ", 1)[-1])
    tests = sorted({test for mutation in chosen for test in mutation.tests})
    unsound = {} if options.skip_sound else sound(tests)
    caught = 0
    for group in [chosen] if options.together else [[mutation] for mutation in chosen]:
        began = time.monotonic()
        verdicts = judge(group, unsound)
        seconds = time.monotonic() - began
        for mutation in group:
            is_caught, what = verdicts[mutation.name]
            caught += is_caught
            verdict = "PASS" if is_caught else "FAIL"
            how = f", {len(group)} together" if options.together else ""
            print(f"{verdict}  {mutation.name}: {mutation.sabotage}: {what} ({seconds:.0f} s{how})", flush=True)
    print(f"{'PASS' if caught == len(chosen) else 'FAIL'}  {caught} of {len(chosen)} sabotages were noticed")
    sys.exit(caught != len(chosen))


if __name__ == "__main__":
    main()
