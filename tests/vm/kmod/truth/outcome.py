# SPDX-License-Identifier: Apache-2.0
"""The true accesses of a program and the module's records, by epoch and page."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.vm.host import REPOSITORY

RECORD = np.dtype([("epoch", "u4"), ("page", "i8"), ("node", "u1"), ("flags", "u1")])
"""One page of an access record of the log (a record covers one or more pages). `page` is the page's
number in the arena."""


def _defines(header: Path) -> dict[str, int]:
    """The constants that a C header defines in the form 5u or (1u << 3): name -> value."""
    pattern = r"^#define (\w+) (?:(\d+)u\b|\((\d+)u << (\d+)\))"
    return {
        name: int(plain) if plain else int(base) << int(shift)
        for name, plain, base, shift in re.findall(pattern, header.read_text(), re.MULTILINE)
    }


C = {
    **_defines(Path(__file__).with_name("truth.h")),
    **_defines(REPOSITORY / "kmod" / "sentinel_uapi.h"),
}
"""The constants of truth.h and of the module's UAPI header."""

ARENA_PAGES = C["ARENA_PAGES"]
HUGE_PAGES = C["HUGE_PAGES"]


@dataclasses.dataclass
class Outcome:
    """The results of one program. Row 0 of the arrays is empty, because epochs begin at 1."""

    truth: npt.NDArray[np.uint8]
    """TRUTH_* flags of truth.h; the indices are epoch and page."""
    marks: npt.NDArray[np.uint16]
    """MARK_* flags of truth.h; the indices are epoch and page."""
    records: npt.NDArray[np.void]
    """Of dtype RECORD."""
    features: int
    """The module's SENTINEL_FEATURE_* flags."""
    lost: int
    """Number of records that the module lost."""
    wrong: int
    """Number of words in memory with a wrong value."""
    complaints: list[str]
    """Other lines that the program printed: failed checks, and words with a wrong value. Also a
    line with the program's status, if it is not 0."""


def parse(lines: Iterable[str]) -> Outcome:
    """Parse the output of kmod-truth for one program."""
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
    if (status := values.pop("end")) != 0:
        complaints.append(f"the program ended with status {status}")
    table = np.array(records, RECORD) if records else np.zeros(0, RECORD)
    return Outcome(truth, marks, table, **values, complaints=complaints)
