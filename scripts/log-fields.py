#!/usr/bin/env python3
"""Compares the fields of the log messages in the sources with the list in docs/operations/log-fields.md.

Prints one line per difference, "FILE[:LINE]: problem: what to do". Usage: scripts/log-fields.py, in the root of the checkout.
"""

import pathlib
import re
import sys

LIST = pathlib.Path("docs/operations/log-fields.md")
CALL = re.compile(r"\btracing::(?:error|warn|info|debug|trace)!\(")
# `name = value`, `%name`, `?name` and `name`. `target: "..."` is not a field.
FIELD = re.compile(r"(?P<named>[a-z_][a-z0-9_.]*)\s*=(?!=)|[%?]?(?P<short>[a-z_][a-z0-9_]*)$")


# Exit status after findings; Python itself exits with 1 after an exception.
FINDINGS = 3


def arguments(text: str, start: int) -> list[str]:
    """Returns the arguments of a macro call. The first argument begins at `start`."""
    depth, begin, position, result = 0, start, start, []
    while True:
        character = text[position]
        if character == '"':
            position += 1
            while text[position] != '"':
                position += 2 if text[position] == "\\" else 1
        elif character in "([{":
            depth += 1
        elif character in ")]}" and depth == 0:
            return result + [text[begin:position]]
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            result.append(text[begin:position])
            begin = position + 1
        position += 1


def fields(text: str, start: int) -> list[str]:
    """Returns the names of the fields of the call. The fields precede the message."""
    names = []
    for argument in (part.strip() for part in arguments(text, start)):
        if argument.startswith('"'):
            break
        match = FIELD.match(argument)
        if match and match["named"] != "target":
            names.append(match["named"] or match["short"])
    return names


def main() -> int:
    listed = set(re.findall(r"^\| `([a-z0-9_]+)` \|", LIST.read_text(), re.MULTILINE))
    used, findings = set(), []
    sources = (path for directory in ("crates", "programs") for path in pathlib.Path(directory).glob("*/src/**/*.rs"))
    for path in sorted(sources):
        text = path.read_text()
        for call in CALL.finditer(text):
            for name in fields(text, call.end()):
                used.add(name)
                if name not in listed:
                    line = text.count("\n", 0, call.start()) + 1
                    findings.append(f"{path}:{line}: log field `{name}` is not in {LIST}: use a listed name, or add the field")
    findings += [f"{LIST}: no log message has the field `{name}`: delete the line" for name in sorted(listed - used)]
    print("\n".join(findings), end="\n" if findings else "")
    return FINDINGS if findings else 0


sys.exit(main())
