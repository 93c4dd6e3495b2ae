"""Checks pages, comments, strings and names for words that the style forbids: persons for code parts, and unidiomatic phrases.

It reads README.md and docs/ (without code), the template, the Makefile, the comments of Rust, Python, shell and TOML, and the
strings and function names of Rust. Words in backticks are skipped.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PERSONS = "who whoever whom whomever nobody somebody everybody anybody he his him himself".split()
# Each with the word to write.
IDIOMS = {
    "anew": "again",
    "for ever": "indefinitely",
    "by hand": "manually",
    "all the same": "anyway",
    "in truth": "really",
    "for good": "permanently",
}
FORBIDDEN = re.compile(r"(?<![\w-])(" + "|".join([*PERSONS, *IDIOMS]).replace(" ", r"\s+") + r")(?![\w-])", re.I)
IN_NAME = re.compile(r"(?:^|_)(" + "|".join([*PERSONS, *IDIOMS]).replace(" ", "_") + r")(?=_|$)")

# The files that must quote the words.
SKIPPED = {"scripts/check_words.py"}


# A comment, a string, or a character.
RUST = re.compile(r"""//[^\n]*|\br(#*)".*?"\1|"(?:[^"\\]|\\.)*"|'(?:[^'\\\n]|\\.)'""", re.S)


def spaces(match):
    """Blanks a match, but keeps its lines, so that the line numbers stay right."""
    return re.sub(r"[^\n]", " ", match.group())


def prose(path, text):
    """The text of a file without its code, with the same lines."""
    if path.suffix == ".md":
        text = re.sub(r"^(```|~~~).*?^\1", spaces, text, flags=re.S | re.M)
    elif path.suffix == ".rs":
        kept, end = [], 0
        for token in RUST.finditer(text):
            kept += [re.sub(r"[^\n]", " ", text[end : token.start()]), re.sub(r"^//[/!]?|\\\n", spaces, token.group())]
            end = token.end()
        text = "".join(kept)
    elif path.suffix in {".py", ".sh", ".toml"}:
        text = "\n".join(line[line.index("#") :] if "#" in line else "" for line in text.split("\n"))
    return re.sub(r"`[^`\n]*`", spaces, text)


def findings(name):
    path = ROOT / name
    text = path.read_text(encoding="utf-8")
    words = prose(path, text)
    for match in FORBIDDEN.finditer(words):
        yield name, words.count("\n", 0, match.start()) + 1, " ".join(match.group().lower().split())
    if path.suffix == ".rs":
        for match in re.finditer(r"\bfn\s+(\w+)", text):
            for word in IN_NAME.findall(match.group(1)):
                yield name, text.count("\n", 0, match.start()) + 1, f"{word.replace('_', ' ')} in {match.group(1)}"


def files():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in sorted(set(listed.stdout.splitlines())):
        path = Path(name)
        if name in SKIPPED or not (ROOT / name).is_file():
            continue
        if path.suffix in {".md", ".rs", ".py", ".sh", ".toml"} or name in {"Makefile", "template.yaml", "samconfig.toml"}:
            yield name


def main():
    failed = False
    for name in files():
        for file, line, word in findings(name):
            failed = True
            instead = IDIOMS.get(word)
            print(f"words: {file}:{line}: {word}" + (f" (write: {instead})" if instead else ": rewrite the sentence"), file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
