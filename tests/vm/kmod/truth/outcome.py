# SPDX-License-Identifier: Apache-2.0
"""What one program truly did and what the module said of it, as arrays of pages and epochs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.vm.host import REPOSITORY

RECORD = np.dtype([("epoch", "u4"), ("page", "i8"), ("node", "u1"), ("flags", "u1")])
"""One access record of the log; page counts from the arena's first one."""


def _defines(header: Path) -> dict[str, int]:
    """The unsigned numbers that a C header defines, plain or as a shifted bit."""
    pattern = r"^#define (\w+) (?:(\d+)u\b|\((\d+)u << (\d+)\))"
    return {
        name: int(plain) if plain else int(base) << int(shift)
        for name, plain, base, shift in re.findall(pattern, header.read_text(), re.MULTILINE)
    }


C = {
    **_defines(Path(__file__).with_name("truth.h")),
    **_defines(REPOSITORY / "kmod" / "sentinel_uapi.h"),
}
"""The numbers of truth.h and of the module's contract."""

ARENA_PAGES = C["ARENA_PAGES"]
HUGE_PAGES = C["HUGE_PAGES"]


@dataclasses.dataclass
class Outcome:
    """One program's run. Arrays have a row for each epoch; row 0 is empty, as epochs begin at 1."""

    truth: npt.NDArray[np.uint8]
    """TRUTH_* of truth.h by epoch and page."""
    marks: npt.NDArray[np.uint16]
    """MARK_* of truth.h by epoch and page."""
    records: npt.NDArray[np.void]
    features: int
    lost: int
    wrong: int
    """Words that did not hold what they must."""
    complaints: list[str]
    """What the program said beside its results: that it failed, and which words were wrong."""


def parse(lines: Iterable[str]) -> Outcome:
    """Read what the guest's program prints for one program."""
    values = {"features": 0, "lost": 0, "wrong": 0, "end": -1}
    truth = np.zeros((C["EPOCHS"] + 1, ARENA_PAGES), np.uint8)
    marks = np.zeros((C["EPOCHS"] + 1, ARENA_PAGES), np.uint16)
    records: list[tuple[int, int, int, int]] = []
    complaints: list[str] = []
    for line in lines:
        word, *rest = line.split()
        numbers = [int(number) for number in rest if number.lstrip("-").isdigit()]
        if len(numbers) != len(rest):
            complaints.append(line.strip())
        elif word == "p":
            epoch, start, count, done, marked = numbers
            truth[epoch, start : start + count] = done
            marks[epoch, start : start + count] = marked
        elif word == "a":
            epoch, page, node, flags, more_pages = numbers
            records += [(epoch, page + i, node, flags) for i in range(more_pages + 1)]
        elif word in values:
            (values[word],) = numbers
        else:
            complaints.append(line.strip())
    if values.pop("end") != 0:
        complaints.append("the program did not end well")
    table = np.array(records, RECORD) if records else np.zeros(0, RECORD)
    return Outcome(truth, marks, table, **values, complaints=complaints)
