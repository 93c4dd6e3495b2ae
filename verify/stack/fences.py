"""The fenced blocks of pages, and the shell that runs them."""

import re

from processes import ROOT

# A block without an end is the rest of the page.
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)(?:^```$|\Z)", re.M | re.S)
BASH = ["bash", "-euo", "pipefail", "-c"]


def page(name):
    """Returns the text of a page of docs/."""
    return (ROOT / "docs" / name).with_suffix(".md").read_text(encoding="utf-8")


def blocks(text):
    """Returns the blocks of a page in their order: the words of each fence, and its text."""
    return BLOCK.findall(text)


def commands(text):
    """Returns the blocks of commands that have names, by them."""
    return {words[len("sh "):]: block for words, block in blocks(text) if words.startswith("sh ")}
