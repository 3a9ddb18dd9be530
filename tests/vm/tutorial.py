# SPDX-License-Identifier: Apache-2.0
"""Reads the commands of a tutorial, and compares its outputs with those of a run.

A code block that begins with `$ ` or `^C` has commands, each followed by its output. `^C` is Ctrl-C
in the shell of the command that still runs. A line `...` stands for output that the page leaves
out, and ` ...` at the end of a line stands for the rest of the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

BLOCK = re.compile(r"^```\n(?=\$ |\^C)(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^Save this as `([^`]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT = "$ "
INTERRUPT = "^C"
OMITTED = "..."


@dataclass(frozen=True)
class Step:
    """A command, or INTERRUPT, and the output that the page shows."""

    command: str
    output: tuple[str, ...]


def steps(page: str) -> list[Step]:
    """The commands of a page, in the order of the page."""
    found: list[Step] = []
    for block in BLOCK.findall(page):
        for text in re.split(r"^(?=\$ |\^C$)", block, flags=re.MULTILINE)[1:]:
            first, *output = text.splitlines()
            found.append(Step(first.removeprefix(PROMPT), tuple(output)))
    return found


def files(page: str) -> dict[str, str]:
    """The files that a page tells the reader to save: name -> text."""
    return dict(FILE.findall(page))


def shape(line: str) -> str:
    """A line without the parts that differ between runs: figures, units of bytes, column widths."""
    line = re.sub(r"\d+(?:[.,]\d+)*", "0", line)
    line = re.sub(r"0 (?:[KMGT]i)?B\b", "0 B", line)
    return " ".join(line.split())


def first_word(line: str) -> str:
    """The first word of a line, by which the lines of a live view are compared."""
    return shape(line).partition(" ")[0]


def first_missing(
    shown: tuple[str, ...], output: str, alike: Callable[[str], str] = shape
) -> str | None:
    """The first line of `shown` that is missing from the output; None: the output has all lines of
    `shown`, in their order. Two lines are equal if alike() returns the same text for both."""
    lines = iter(map(alike, output.splitlines()))
    for line in shown:
        if line.strip() in ("", OMITTED):
            continue
        wanted = alike(line)
        if wanted.endswith(f" {OMITTED}"):
            beginning = wanted.removesuffix(OMITTED).rstrip()
            present = any(one.startswith(beginning) for one in lines)
        else:
            present = any(one == wanted for one in lines)
        if not present:
            return line
    return None
