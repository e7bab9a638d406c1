#!/usr/bin/env python3
"""Lists the packages that programs contain, with the texts of their licences.

usage: cargo metadata --offline --format-version 1 | third_party.py PACKAGE...

Only linked packages count: dependencies of builds and tests are left out. Equal texts are printed once.
"""

import json
import sys
from pathlib import Path

NAMES = ("license", "licence", "copying", "notice", "unlicense", "copyright")


def linked(metadata, roots):
    """Ids of all packages that the roots contain, the workspace's own left out."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    packages = {package["id"]: package for package in metadata["packages"]}
    waiting = [id for id in metadata["workspace_members"] if packages[id]["name"] in roots]
    if len(waiting) != len(roots):
        sys.exit(f"third_party: not all of {roots} are in the workspace")
    seen = set()
    while waiting:
        id = waiting.pop()
        if id in seen:
            continue
        seen.add(id)
        for dependency in nodes[id]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    is_macro = lambda p: any("proc-macro" in target["kind"] for target in p["targets"])
    found = [packages[id] for id in seen if packages[id]["source"] and not is_macro(packages[id])]
    return sorted(found, key=lambda package: (package["name"], package["version"]))


def texts(package):
    """The licence files of a package."""
    folder = Path(package["manifest_path"]).parent
    files = [file for file in sorted(folder.iterdir()) if file.name.lower().startswith(NAMES) and file.is_file()]
    return [file.read_text(errors="replace").strip() for file in files]


def main():
    packages = linked(json.load(sys.stdin), sys.argv[1:])
    holders = {}
    print("Packages that these programs contain, from crates.io, and their licences.\n")
    for package in packages:
        name = f"{package['name']} {package['version']}"
        licence = package["license"] or "see the text below"
        print(f"{name}: {licence} <{package['repository'] or 'https://crates.io/crates/' + package['name']}>")
        for text in texts(package):
            holders.setdefault(text, []).append(name)
    for text, names in holders.items():
        print(f"\n{'-' * 100}\n{', '.join(names)}\n{'-' * 100}\n{text}")


main()
