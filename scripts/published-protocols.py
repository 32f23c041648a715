#!/usr/bin/env python3
"""Checks that the protocols of published papers (docs/adr/0055-classic-profiles-only-in-the-lab.md) are not in the product.

No program may enable a feature that contains the protocols, and the lab enables all of them. Each program is considered alone,
because cargo unifies the features of all packages that one command builds. Besides the modules `classic` behind these features,
at most 10 source files of the product mention the protocols. Tests and the lab are not considered. Prints one line per finding,
"PLACE: problem: what to do".

Usage: scripts/published-protocols.py, or scripts/published-protocols.py --list (prints the files), in the root of the checkout.
"""

import pathlib
import re
import subprocess
import sys

# By package: the feature that contains its module `classic`.
FEATURES = {"linewarden-dataplane": "bench", "linewarden-protocol": "lab"}
LAB = "linewarden-lab"
FILES_MAX = 10
MENTION = re.compile(r"classic|p4dra", re.IGNORECASE)
NOT_PRODUCT = re.compile(r"^crates/lab/|^crates/[^/]+/src/classic/|/tests/|tests\.rs$")
SUFFIXES = {".rs", ".c", ".h", ".toml"}
# Exit status after findings; Python itself exits with 1 after an exception.
FINDINGS = 3


def output(*command):
    """Returns the lines that a command prints."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def programs():
    """Returns the packages of the programs."""
    manifests = sorted(pathlib.Path("programs").glob("*/Cargo.toml"))
    return [re.search(r'^name = "(.+)"', file.read_text(encoding="utf-8"), re.MULTILINE)[1] for file in manifests]


def enabled(package):
    """Returns the packages whose module `classic` is compiled if cargo builds only this package."""
    lines = output("cargo", "tree", "--offline", "-p", package, "-e", "no-dev", "--prefix", "none", "-f", "{p}|{f}")
    found = set()
    for line in lines:
        name, _, features = line.removesuffix(" (*)").partition("|")
        name = name.split(" ")[0]
        if FEATURES.get(name) in features.split(","):
            found.add(name)
    return found


def mentions():
    """Returns the source files of the product that mention the protocols."""
    names = output("git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "crates", "programs")
    files = [pathlib.Path(name) for name in names if not NOT_PRODUCT.search(name)]
    files = [file for file in files if file.suffix in SUFFIXES and file.is_file()]
    return [file for file in files if MENTION.search(file.read_text(encoding="utf-8"))]


def findings():
    """Yields the findings."""
    for program in programs():
        for package in sorted(enabled(program)):
            feature = f"{package}/{FEATURES[package]}"
            yield f"{program}: enables {feature}, which contains the papers' protocols: remove it from the dependencies"
    for package in sorted(FEATURES.keys() - enabled(LAB)):
        yield f"{LAB}: does not enable {package}/{FEATURES[package]}: enable it, or remove it from {sys.argv[0]}"
    files = mentions()
    if len(files) > FILES_MAX:
        names = " ".join(map(str, files))
        yield f"product: {len(files)} files mention the papers' protocols (maximum: {FILES_MAX}): move code to `classic`: {names}"


def main():
    """Prints the findings, or the files."""
    if sys.argv[1:] == ["--list"]:
        print(*mentions(), sep="\n")
        return 0
    status = 0
    for finding in findings():
        print(finding)
        status = FINDINGS
    return status


if __name__ == "__main__":
    sys.exit(main())
