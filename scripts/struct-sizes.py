#!/usr/bin/env python3
"""Finds structs of the product with more than 15 fields and without a reason for them.

A struct that owns much state is hard to understand: each function can change all of it. A struct may have more fields if its
documentation, or a comment before it, gives the reason, with the words "more than 15 fields". The lab, the testbed, the harness,
the simulator of signatures, and files outside src are not considered. The code must be formatted by rustfmt. Prints one line per
finding, "FILE: problem: what to do".

Usage: scripts/struct-sizes.py, or scripts/struct-sizes.py --largest N (prints the N largest structs, and the N largest traits), in the
root of the checkout.
"""

import argparse
import pathlib
import re
import sys

FIELDS_MAX = 15
REASON = f"more than {FIELDS_MAX} fields"
NOT_PRODUCT = ("crates/lab/", "crates/testbed/", "crates/harness/", "crates/signatures/src/simulator/")
ITEM = re.compile(r"(?P<indent> *)(?:pub(?:\([^)]*\))? )?(?:unsafe )?(?P<kind>struct|trait) (?P<name>\w+)[^;{]*\{?$")
FIELD = re.compile(r"(?:pub(?:\([^)]*\))? )?(?:r#)?\w+: ")
METHOD = re.compile(r"(?:async )?fn ")
# Exit status after findings; Python itself exits with 1 after an exception.
FINDINGS = 3


def items(file):
    """Yields kind, name, number of fields or methods, and documentation of each struct and trait of a file."""
    lines = file.read_text(encoding="utf-8").split("\n")
    documentation = []
    for number, line in enumerate(lines):
        item = ITEM.match(line)
        if not item:
            is_documentation = re.match(r"\s*(//|#\[|\)\])", line)
            documentation = documentation + [line] if is_documentation else []
            continue
        indent = item["indent"]
        member = FIELD if item["kind"] == "struct" else METHOD
        count = 0
        for inner in lines[number + 1 :]:
            if inner == indent + "}" or inner.startswith(indent + ");"):
                break
            start = indent + "    "
            count += inner.startswith(start) and bool(member.match(inner[len(start) :]))
        text = " ".join(part.strip().lstrip("/").strip() for part in documentation)
        yield item["kind"], item["name"], count, text
        documentation = []


def product_files():
    """Returns the source files of the product."""
    files = [file for root in ("crates", "programs") for file in pathlib.Path(root).glob("*/src/**/*.rs")]
    return sorted(file for file in files if not str(file).startswith(NOT_PRODUCT))


def main():
    """Prints the findings, or the largest items."""
    parser = argparse.ArgumentParser(description="Finds structs with too many fields.")
    parser.add_argument("--largest", type=int, metavar="N", help="print the N largest structs and traits instead")
    arguments = parser.parse_args()
    found = [(count, kind, name, file, text) for file in product_files() for kind, name, count, text in items(file)]
    if arguments.largest:
        for kind, members in (("struct", "fields"), ("trait", "methods")):
            largest = sorted((item for item in found if item[1] == kind), reverse=True)[: arguments.largest]
            for count, _, name, file, _ in largest:
                print(f"{kind} {name}: {count} {members} ({file})")
        return 0
    status = 0
    for count, kind, name, file, text in found:
        if kind == "struct" and count > FIELDS_MAX and REASON not in text:
            print(
                f"{file}: struct {name} has {count} fields: divide the struct, or give the reason in its documentation "
                f'("{REASON}")'
            )
            status = FINDINGS
    return status


if __name__ == "__main__":
    sys.exit(main())
