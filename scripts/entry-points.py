#!/usr/bin/env python3
"""Checks that the names in docs/entry-points.md exist in the linked files.

The page names functions, types and tests in code font after a link to their file: [TEXT](../FILE) `NAME`, `NAME`. The last part of a
NAME, after "::", must occur as a word in the file. Links themselves are checked by scripts/tidy. Prints one line per finding, "FILE:
problem: what to do". Usage: scripts/entry-points.py, in the root of the checkout.
"""

import pathlib
import re
import sys

PAGE = pathlib.Path("docs/entry-points.md")
# A link into the repository, and the names that follow the link.
REFERENCE = re.compile(r"\]\(\.\./(?P<file>[^)#]+)\)(?P<names>(?:,?\s+`[^`]+`)+)")
NAME = re.compile(r"`(?:\w+::)*(?P<last>\w+)!?`")
# Exit status after findings; Python itself exits with 1 after an exception.
FINDINGS = 3


def main():
    """Prints the findings."""
    status = 0
    for reference in REFERENCE.finditer(PAGE.read_text(encoding="utf-8")):
        file = pathlib.Path(reference["file"])
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        for name in NAME.finditer(reference["names"]):
            if not re.search(rf"\b{name['last']}\b", text):
                print(f"{PAGE}: {file} has no {name['last']}: correct the name, or link to the file that has it")
                status = FINDINGS
    return status


if __name__ == "__main__":
    sys.exit(main())
