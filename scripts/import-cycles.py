#!/usr/bin/env python3
"""Finds files of a crate that import each other, directly or through other files.

A file imports another file if its code names an item that the other file defines: in `use`, or in a path in the code.
Declarations of modules and re-exports (`pub use`) are no imports: a path through a re-export leads to the file that
defines the item. Code under `#[cfg(test)]` and calls of methods are not considered.

scripts/import-cycles.tsv lists the cycles that exist, with the package: the name of a directory in crates, or programs/NAME.
A cycle that is not in this list, and an entry without a cycle, is a finding. Prints one line per finding, "FILE: problem: what
to do". Usage: scripts/import-cycles.py, in the root of the checkout.
"""

import dataclasses
import pathlib
import re
import sys

LIST = pathlib.Path("scripts/import-cycles.tsv")
ADVICE = "move what both files need into a file that imports neither"

# Comments, strings and characters, which are no code. A lifetime does not start a character.
NO_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<hashes>\#*)"(?:.*?)"(?P=hashes)|[bc]?"(?:[^"\\]|\\.)*"|b?'(?:[^'\\]|\\[^u]|\\u\{\w+\}|\\x\w\w)'""",
    re.DOTALL,
)
TEST_ONLY = re.compile(r"#\[cfg\((?:test|all\(test\b[^\]]*)\)\]")
ATTRIBUTE = re.compile(r"#!?\[")
VISIBILITY = r"(?P<visibility>pub(?:\([^)]*\))?\s+)?"
MODULE = re.compile(rf"\b{VISIBILITY}mod\s+(?P<name>\w+)\s*(?P<open>[;{{])")
ITEM = re.compile(
    r"\b(?:(?:struct|enum|union|trait|type|static(?:\s+mut)?)\s+|(?:const\s+)?(?:unsafe\s+)?(?:extern\s+)?fn\s+|const\s+|macro_rules!\s*)(\w+)"
)
ITEM_START = re.compile(
    r"\s*(?:pub(?:\([^)]*\))?\s+)?(?:(?:async|const|unsafe|extern)\s+)*(?:fn|use|mod|impl|struct|enum|union|trait|type|const|static)\b"
)
USE = re.compile(rf"\b{VISIBILITY}use\s+(?P<tree>[^;]+);")
PATH = re.compile(r"(?<![\w:.])(?:\$crate|\w+)(?:\s*::\s*\w+)+")
PATH_ATTRIBUTE = re.compile(r'#\[path = "([^"]+)"\]\s*(?:#\[[^\]]*\]\s*)*' + MODULE.pattern)


@dataclasses.dataclass
class Module:
    """A module, and its part of a file."""

    file: pathlib.Path
    parent: "Module | None"
    children: dict[str, "Module"] = dataclasses.field(default_factory=dict)
    items: set[str] = dataclasses.field(default_factory=set)
    # Names that `use` introduces, with their paths, and the paths of `use ..::*`.
    names: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    globs: list[list[str]] = dataclasses.field(default_factory=list)
    # Paths of private `use`, and paths in the code.
    imports: list[list[str]] = dataclasses.field(default_factory=list)

    def root(self) -> "Module":
        return self.parent.root() if self.parent else self


# Exit status after findings; Python itself exits with 1 after an exception.
FINDINGS = 3


def blank(text: str) -> str:
    """Returns spaces and line ends in place of a text."""
    return re.sub(r"[^\n]", " ", text)


def closing(text: str, start: int) -> int:
    """Returns the position after the bracket that closes the first bracket from `start` on."""
    depth = 0
    for position in range(start, len(text)):
        if text[position] in "([{":
            depth += 1
        elif text[position] in ")]}":
            depth -= 1
            if depth == 0:
                return position + 1
    return len(text)


def end_of_item(text: str, start: int) -> int:
    """Returns the position after the item that begins at `start`, perhaps with attributes."""
    position = start
    while position < len(text):
        if text[position] == ";":
            return position + 1
        if text[position] == "{":
            return closing(text, position)
        if text[position] == "," and not ITEM_START.match(text, start):
            # A field, a variant or an argument.
            return position + 1
        if text[position] in "([":
            position = closing(text, position)
        elif text[position] in ")]}":
            return position
        else:
            position += 1
    return position


def code(text: str) -> str:
    """Returns the code of a file without tests, attributes, comments and strings, with the same line ends."""
    text = NO_CODE.sub(lambda match: blank(match[0]), text)
    while match := TEST_ONLY.search(text):
        end = match.end()
        while attribute := re.compile(r"\s*#\[").match(text, end):
            end = closing(text, attribute.end() - 1)
        end = end_of_item(text, end)
        text = text[: match.start()] + blank(text[match.start() : end]) + text[end:]
    while match := ATTRIBUTE.search(text):
        end = closing(text, match.end() - 1)
        text = text[: match.start()] + blank(text[match.start() : end]) + text[end:]
    return re.sub(r"\bpub\(in [^)]*\)", "pub", text)


def outermost(text: str) -> str:
    """Returns a text without the contents of brackets."""
    result, depth = [], 0
    for character in text:
        depth -= character in ")]}"
        result.append(character if depth == 0 else " ")
        depth += character in "([{"
    return "".join(result)


def leaves(tree: str) -> list[tuple[list[str], str]]:
    """Returns the paths of a `use` tree, each with the name that it introduces."""
    tree = tree.strip()
    if (brace := tree.find("{")) >= 0:
        prefix = [part.strip() for part in tree[:brace].split("::") if part.strip()]
        result, depth, begin = [], 0, brace + 1
        for position in range(brace + 1, len(tree)):
            if tree[position] == "{":
                depth += 1
            elif tree[position] == "}" and depth > 0:
                depth -= 1
            elif tree[position] in ",}" and depth == 0:
                if tree[begin:position].strip():
                    result += [(prefix + path, name) for path, name in leaves(tree[begin:position])]
                begin = position + 1
        return [(path[:-1] if path[-1] == "self" else path, name if name != "self" else path[-2]) for path, name in result]
    path, _, name = tree.partition(" as ")
    parts = [part.strip() for part in path.split("::") if part.strip()]
    return [(parts, name.strip() or parts[-1])]


def read_module(module: Module, text: str, directory: pathlib.Path, paths: dict[str, str]) -> None:
    """Reads a module's code. `directory` contains the files of its children, unless they have other `paths`."""
    position = 0
    while match := MODULE.search(text, position):
        name, end = match["name"], match.end()
        if match["open"] == "{":
            end = closing(text, match.end() - 1)
            child = Module(module.file, module)
            read_module(child, text[match.end() : end - 1], directory / name, paths)
            module.children[name] = child
        else:
            files = [directory / f"{name}.rs", directory / name / "mod.rs"]
            if name in paths and name in module.children:
                files = [module.file.parent / paths[name]]
            if file := next((file for file in files if file.is_file()), None):
                child = read_file(file, module, file.parent if file.name == "mod.rs" else directory / name)
                module.children.setdefault(name, child)
        text = text[: match.start()] + blank(text[match.start() : end]) + text[end:]
        position = end
    module.items.update(ITEM.findall(outermost(text)))
    rest = USE.sub(lambda match: blank(match[0]), text)
    for match in USE.finditer(text):
        for path, name in leaves(match["tree"]):
            if name == "*":
                module.globs.append(path[:-1])
                continue
            if name != "_":
                module.names.setdefault(name, path)
            if not match["visibility"] or re.search(rf"\b{name}\b", rest):
                module.imports.append(path)
    module.imports += [re.split(r"\s*::\s*", match[0]) for match in PATH.finditer(rest)]


def read_file(file: pathlib.Path, parent: Module | None, directory: pathlib.Path) -> Module:
    module = Module(file, parent)
    text = file.read_text()
    paths = {match["name"]: match[1] for match in PATH_ATTRIBUTE.finditer(text)}
    read_module(module, code(text), directory, paths)
    return module


def resolve(module: Module, path: list[str], visited: frozenset = frozenset()) -> Module | tuple[pathlib.Path, str] | None:
    """Returns what a path in a module names: a module, an item (file and name), or None if it is in another crate."""
    first, rest = path[0], path[1:]
    if first in ("crate", "$crate"):
        return member(module.root(), rest, visited)
    if first == "self":
        return member(module, rest, visited)
    if first == "super":
        return member(module.parent, rest, visited) if module.parent else None
    if first in module.children or first in module.names:
        return member(module, path, visited)
    return None


def member(module: Module, path: list[str], visited: frozenset) -> Module | tuple[pathlib.Path, str] | None:
    """Returns what a path relative to a module names."""
    if not path:
        return module
    first, rest = path[0], path[1:]
    if first in ("super", "self"):
        return resolve(module, path, visited)
    if (id(module), first) in visited:
        return None
    visited |= {(id(module), first)}
    if first in module.items and not (rest and first in module.children):
        return module.file, first
    if first in module.children:
        return member(module.children[first], rest, visited)
    if first in module.names:
        found = resolve(module, module.names[first], visited)
        return member(found, rest, visited) if isinstance(found, Module) else found
    for glob in module.globs:
        found = resolve(module, glob, visited)
        if isinstance(found, Module) and defines(found, first):
            return member(found, path, visited)
    # A macro defines the item.
    return module.file, first


def defines(module: Module, name: str) -> bool:
    return name in module.items or name in module.children or name in module.names or bool(module.globs)


def modules(module: Module) -> list[Module]:
    return [module] + [found for child in module.children.values() for found in modules(child)]


def imports(root: Module) -> dict[pathlib.Path, dict[pathlib.Path, set[str]]]:
    """Returns the files that each file imports, with the names."""
    graph: dict[pathlib.Path, dict[pathlib.Path, set[str]]] = {}
    for module in modules(root):
        found = graph.setdefault(module.file, {})
        for path in module.imports:
            target = resolve(module, path)
            if isinstance(target, tuple) and target[0] != module.file:
                found.setdefault(target[0], set()).add(target[1])
        for glob in module.globs:
            target = resolve(module, glob)
            if isinstance(target, Module) and target.file != module.file and target.items:
                found.setdefault(target.file, set()).add("*")
    return graph


def cycles(graph: dict[pathlib.Path, dict[pathlib.Path, set[str]]]) -> list[list[pathlib.Path]]:
    """Returns the sets of files that reach each other."""
    reached: dict[pathlib.Path, set[pathlib.Path]] = {}
    for file in graph:
        seen, stack = set(), [file]
        while stack:
            for target in graph.get(stack.pop(), {}):
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
        reached[file] = seen
    found = {frozenset(other for other in reached[file] if file in reached[other]) for file in graph if file in reached[file]}
    return sorted(sorted(cycle) for cycle in found)


def shortest(graph: dict[pathlib.Path, dict[pathlib.Path, set[str]]], cycle: list[pathlib.Path]) -> list[pathlib.Path]:
    """Returns the shortest path from a file of a cycle back to the file."""
    paths = []
    for file in cycle:
        queue, seen = [[file]], set()
        while queue:
            path = queue.pop(0)
            if file in graph[path[-1]]:
                paths.append(path)
                break
            for target in sorted(graph[path[-1]]):
                if target in cycle and target not in seen:
                    seen.add(target)
                    queue.append(path + [target])
    return min(paths, key=len)


def known() -> set[tuple[str, str]]:
    """Returns the listed cycles: package, and files relative to the package's directory src."""
    lines = LIST.read_text().splitlines() if LIST.is_file() else []
    entries = (line.partition("\t") for line in lines if line and not line.startswith("#"))
    return {(package, files) for package, _, files in entries}


def main() -> int:
    listed, existing, findings = known(), set(), []
    for source in sorted(source for directory in ("crates", "programs") for source in pathlib.Path(directory).glob("*/src")):
        # A program may have the name of a library.
        package = source.parent.name if source.parts[0] == "crates" else str(source.parent)
        for root in (source / "lib.rs", source / "main.rs"):
            graph = imports(read_file(root, None, source)) if root.is_file() else {}
            for cycle in cycles(graph):
                files = " ".join(str(file.relative_to(source)) for file in cycle)
                existing.add((package, files))
                if (package, files) in listed:
                    continue
                path = shortest(graph, cycle)
                steps = [
                    f"{file.relative_to(source)} uses {', '.join(sorted(graph[file][target]))} of {target.relative_to(source)}"
                    for file, target in zip(path, path[1:] + path[:1])
                ]
                findings.append(f"{path[0]}: cycle of imports among {files} ({'; '.join(steps)}): {ADVICE}")
    findings += [f"{LIST}: {package} has no such cycle: {files}: delete the entry" for package, files in sorted(listed - existing)]
    print("\n".join(findings), end="\n" if findings else "")
    return FINDINGS if findings else 0


sys.exit(main())
