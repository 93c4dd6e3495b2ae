"""Checks that the files of each crate import each other in one direction: no file reaches itself by imports. Where lib.rs has
a table of its folders, no folder imports from one that is listed above it.

A name counts for the file that defines it, also where it is imported through re-exports. Tests inside the files are left out,
and so are re-exports themselves: a folder's own file may list what is in it.

It also checks that each pattern of .cargo/mutants.toml matches a file.

Usage: check_layers.py [crate]   with a crate, it lists the imports that tie its files together
"""

import re
import sys
import tomllib
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

ITEM = re.compile(
    r"^(?:pub(?:\([^)]*\))? )?(?:const |async |unsafe )*(?:struct|enum|union|trait|type|fn|const|static|macro_rules!)\s+(\w+)", re.M
)
USE = re.compile(r"^[ \t]*(pub(?:\([^)]*\))? )?use ([^;]+);", re.M)
PATH = re.compile(r"\b[a-z_]\w*(?:::\w+)+")


class Import:
    """One name of a `use`: its path, the name it gets, and whether others can import it from here."""

    def __init__(self, path, is_public):
        path, _, alias = path.partition(" as ")
        self.path = path.strip().split("::")
        self.name = alias.strip() or self.path[-1]
        self.is_public = is_public


def expanded(tree):
    """The paths of a `use`, whose braces may be nested."""
    head, brace, rest = tree.strip().partition("{")
    if not brace:
        return [head.strip()]
    paths, depth, part = [], 0, ""
    for char in rest[: rest.rindex("}")] + ",":
        depth += (char == "{") - (char == "}")
        if char != "," or depth:
            part += char
            continue
        if part.strip():
            paths += [head + path for path in expanded(part)]
        part = ""
    return paths


class File:
    def __init__(self, module, text):
        text = re.sub(r"#\[cfg\(test\)\]\s*mod tests \{.*", "", text, flags=re.S)
        text = re.sub(r"//[^\n]*", "", text)
        text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text)
        self.module = module
        self.items = set(ITEM.findall(text))
        self.imports = [Import(path, bool(public)) for public, tree in USE.findall(text) for path in expanded(tree)]
        self.paths = [path.split("::") for path in PATH.findall(USE.sub("", text))]


class Crate:
    def __init__(self, folder):
        self.files = {}
        source = folder / "src"
        self.source = source
        root = ("lib",) if (source / "lib.rs").exists() else ("main",)
        for path in sorted(source.rglob("*.rs")):
            module = path.relative_to(source).with_suffix("").parts
            module = () if module == root else module
            if module and (module[0] in {"main", "bin"} or module[-1] == "tests"):
                continue
            self.files[module] = File(module, path.read_text(encoding="utf-8"))

    def absolute(self, module, path):
        """The path from the crate's root, or None where it leads out of the crate."""
        head, *rest = path
        if head == "crate":
            return tuple(rest)
        if head == "self":
            return (*module, *rest)
        if head == "super":
            while path and path[0] == "super":
                module, path = module[:-1], path[1:]
            return (*module, *path)
        if (*module, head) in self.files:
            return (*module, *path)
        for known in self.files[module].imports:
            if known.name == head and known.path[0] in {"crate", "super", "self"}:
                return (*self.absolute(module, known.path), *rest)
        return None

    def owner(self, path, depth=0):
        """The file that defines what a path from the root leads to."""
        module = path
        while module not in self.files:
            module = module[:-1]
        rest = path[len(module) :]
        file = self.files[module]
        if not rest or rest[0] in file.items or depth > 16:
            return module
        for known in file.imports:
            if known.name != rest[0] and known.name != "*":
                continue
            source = known.path if known.name != "*" else [*known.path[:-1], rest[0]]
            target = self.absolute(module, source)
            if target is not None and (*target, *rest[1:]) != path:
                return self.owner((*target, *rest[1:]), depth + 1)
        return module

    @cached_property
    def edges(self):
        edges = {}
        for module, file in self.files.items():
            paths = [known.path for known in file.imports if not known.is_public] + file.paths
            targets = (self.absolute(module, path) for path in paths)
            edges[module] = {self.owner(target) for target in targets if target is not None} - {module}
        return edges

    @cached_property
    def reached(self):
        """For each file, all files that it reaches by imports."""
        reached = {}
        for module in self.files:
            seen, left = set(), [module]
            while left:
                new = self.edges[left.pop()] - seen
                seen |= new
                left += new
            reached[module] = seen
        return reached

    def cyclic(self):
        return [module for module in self.files if module in self.reached[module]]

    def upward(self):
        """The imports from a folder of a layer listed above it in the table of lib.rs, if there is one."""
        text = (self.source / "lib.rs").read_text(encoding="utf-8") if (self.source / "lib.rs").exists() else ""
        rows = re.findall(r"^//! \| (`[^|]*`) \|", text, re.M)
        rank = {name: at for at, row in enumerate(rows) for name in re.findall(r"`(\w+)`", row)}
        for module, targets in self.edges.items():
            for target in sorted(targets):
                if module and target and rank.get(module[0], 0) > rank.get(target[0], len(rows)):
                    yield f"{'::'.join(module)} imports from {'::'.join(target)}, a layer above it"

    def ties(self):
        """The imports inside of cycles."""
        for module in self.cyclic():
            for target in sorted(self.edges[module]):
                if module in self.reached[target]:
                    yield f"{'::'.join(module) or 'lib'} imports from {'::'.join(target) or 'lib'}"


def crates():
    manifest = (ROOT / "Cargo.toml").read_text(encoding="utf-8")
    members = re.search(r"^members = \[(.*?)\]", manifest, re.S | re.M).group(1)
    return re.findall(r'"([^"]+)"', members)


def expanded(pattern):
    """Returns the patterns that one with braces stands for."""
    before, brace, rest = pattern.partition("{")
    if not brace:
        return [pattern]
    names, _, after = rest.partition("}")
    return [before + name + after for name in names.split(",")]


def unmatched():
    globs = tomllib.loads((ROOT / ".cargo/mutants.toml").read_text())["examine_globs"]
    return [glob for pattern in globs for glob in expanded(pattern) if not any(ROOT.glob(glob))]


def main():
    if len(sys.argv) > 1:
        print(*Crate(ROOT / sys.argv[1]).ties(), sep="\n")
        return
    found = {name: Crate(ROOT / name) for name in crates()}
    wrong = [f"{name}: {tie}" for name, crate in found.items() for tie in (*crate.ties(), *crate.upward())]
    if nothing := unmatched():
        sys.exit(f"{nothing[0]} in .cargo/mutants.toml matches no file: name the one that replaced it")
    sys.exit("\n".join(["files import each other in a cycle, or against the order of the layers:", *wrong]) if wrong else 0)


main()
