# SPDX-License-Identifier: Apache-2.0
"""Compares the module's log with the true accesses of a program.

The rules, for pairs of a page and an epoch in which the page is watched:

- an accessed pair has a record or is marked unknown; paused pairs, whose page the
  controller disarmed for some time, may have neither;
- only accessed pairs have a record, and only written pairs have a record with WRITE;
- a pair has at most one first record (a record without AGAIN), and not both a first record and an
  unknown mark;
- a pair is marked unknown only if the page may have been unarmed in this epoch, if the pair is
  paused, if the page is the zero page (which cannot be armed), or if the page is in a region that
  may have huge pages;
- with precise writes, a written pair has a WRITE record, unless the pair or its later writes are
  marked unknown.

Further rules concern births, AGAIN, and whether the first record is a read or a write.
For huge pages the rules apply to each 2 MiB page as a whole.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from .outcome import ARENA_PAGES, HUGE_PAGES, C, Outcome
from .programs import Program

Pairs = npt.NDArray[np.bool_]
"""A flag for each pair; the indices are epoch and page."""

SHOWN = 12
"""Maximum number of mistakes of one kind that a verdict quotes."""


@dataclasses.dataclass
class Score:
    """Counts of pairs, over one program or many."""

    programs: int = 0
    watched: int = 0
    """Pairs whose page was watched."""
    armed: int = 0
    """Watched pairs, not paused, whose page was present when the epoch began."""
    accessed: int = 0
    """Watched pairs, not paused, that were accessed."""
    judged: int = 0
    """Accessed pairs that are not marked unknown; recall is computed from these."""
    seen: int = 0
    """Judged pairs with a record."""
    recorded: int = 0
    """Pairs with a record of an access."""
    false: int = 0
    """Recorded pairs that were not accessed."""
    unknown: int = 0
    """Pairs marked unknown, except paused pairs and pairs of the zero page."""
    zero: int = 0
    """Pairs that are marked unknown and whose page was the zero page."""
    written: int = 0
    """Judged pairs that were written and whose writes are not marked unknown."""
    seen_written: int = 0
    """Written pairs with a WRITE record."""
    again: int = 0
    """Pairs with a record that has AGAIN, but not UNKNOWN."""
    births: int = 0

    def __iadd__(self, other: Score) -> Score:
        for field in dataclasses.fields(self):
            total = getattr(self, field.name) + getattr(other, field.name)
            setattr(self, field.name, total)
        return self

    @property
    def recall(self) -> float:
        """Fraction of judged pairs that have a record."""
        return self.seen / max(self.judged, 1)

    @property
    def precision(self) -> float:
        """Fraction of recorded pairs that were accessed."""
        return 1 - self.false / max(self.recorded, 1)

    @property
    def write_recall(self) -> float:
        """Fraction of written pairs that have a WRITE record."""
        return self.seen_written / max(self.written, 1)

    @property
    def unknown_share(self) -> float:
        """Ratio of unknown pairs to armed pairs."""
        return self.unknown / max(self.armed, 1)

    def __str__(self) -> str:
        return (
            f"{self.programs} programs, {self.armed} pairs armed, {self.accessed} accessed "
            f"({self.births} births): recall {self.recall:.6f}, precision {self.precision:.6f}, "
            f"{self.unknown} unknown ({self.unknown_share:.2%}), {self.zero} unknown zero pages, "
            f"write recall {self.write_recall:.6f} of {self.written}, {self.again} again"
        )


@dataclasses.dataclass
class Verdict:
    """One program's score, and descriptions of the mistakes."""

    score: Score
    mistakes: list[str]


def judge(outcome: Outcome, program: Program) -> Verdict:
    """Compare one program's log with its true accesses."""
    mistakes = list(outcome.complaints)
    if outcome.lost:
        mistakes.append(f"{outcome.lost} records lost: the log is too small for this program")
    if outcome.wrong:
        mistakes.append(f"{outcome.wrong} words had a wrong value")

    def complain(what: str, pairs: Pairs) -> None:
        found = np.argwhere(pairs)
        mistakes.extend(
            f"{what}: epoch {epoch} page {page}: did {_names('TRUTH', outcome.truth[epoch, page])},"
            f" marks {_names('MARK', outcome.marks[epoch, page])},"
            f" records {_records(outcome, epoch, page)}"
            for epoch, page in found[:SHOWN]
        )
        if len(found) > SHOWN:
            mistakes.append(f"{what}: {len(found)} pairs in total")

    def marked(name: str) -> Pairs:
        pairs: Pairs = outcome.marks & C[f"MARK_{name}"] != 0
        return pairs

    def did(name: str) -> Pairs:
        pairs: Pairs = outcome.truth & C[f"TRUTH_{name}"] != 0
        return pairs

    logged = Log.of(outcome)
    accessed = outcome.truth != 0
    watched = marked("WATCHED")
    maybe_huge = marked("MAYBE_HUGE")
    possible = np.where(maybe_huge, _whole_huge_pages(accessed), accessed)
    possible_writes = np.where(maybe_huge, _whole_huge_pages(did("WRITE")), did("WRITE"))
    zero = marked("ZERO")
    paused = marked("PAUSED")
    changed = watched if program.balancing else marked("CHANGED")

    if logged.foreign:
        mistakes.append(f"{logged.foreign} records of pages outside the arena or of no epoch")
    complain("a record of a page that is not watched", (logged.count > 0) & ~watched)
    complain("more than one first record", logged.first > 1)
    complain("AGAIN without a first record", logged.again & (logged.first == 0))
    complain("both recorded and marked unknown", logged.unknown & (logged.first > 0))
    complain("recorded, but not accessed", (logged.first > 0) & ~possible)
    complain("WRITE, but not written", logged.write & ~possible_writes)
    due = accessed & watched & ~paused
    complain(
        "accessed, but neither recorded nor marked unknown",
        due & (logged.first == 0) & ~logged.unknown,
    )
    complain(
        "marked unknown without a cause", logged.unknown & ~changed & ~paused & ~zero & ~maybe_huge
    )
    calm = due & ~changed & ~maybe_huge & (logged.first > 0)
    complain("written first, recorded as a read", calm & did("WRITE_FIRST") & ~logged.first_write)
    complain(
        "read first, recorded as a write",
        calm & did("READ_FIRST") & logged.first_write & ~logged.birth,
    )
    born = ~marked("PRESENT") | marked("DROPPED")
    complain("a birth, but the page was present", logged.birth & ~born & ~maybe_huge)
    complain("a first touch, but no birth", calm & ~zero & ~marked("PRESENT") & ~logged.birth)
    if not program.rearm_us:
        requested = logged.again_write if program.precise else np.zeros_like(watched)
        complain("AGAIN was not requested", logged.again & ~requested)
    judged = due & ~logged.unknown
    written = judged & did("WRITE") & ~logged.unknown_write
    if program.precise:
        complain("written, but no WRITE", written & ~logged.write)

    return Verdict(
        Score(
            programs=1,
            watched=int(watched.sum()),
            armed=int((watched & ~paused & (marked("PRESENT") | marked("HUGE"))).sum()),
            accessed=int(due.sum()),
            judged=int(judged.sum()),
            seen=int((judged & (logged.first > 0)).sum()),
            recorded=int((logged.first > 0).sum()),
            false=int(((logged.first > 0) & ~possible).sum()),
            unknown=int((logged.unknown & ~zero & ~paused).sum()),
            zero=int((logged.unknown & zero).sum()),
            written=int(written.sum()),
            seen_written=int((written & logged.write).sum()),
            again=int(logged.again.sum()),
            births=int(logged.birth.sum()),
        ),
        mistakes,
    )


@dataclasses.dataclass
class Log:
    """The log's records by pair."""

    count: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    """How many of the pair's records are first accesses."""
    again: Pairs
    again_write: Pairs
    unknown: Pairs
    unknown_write: Pairs
    write: Pairs
    """Whether any record of the pair has WRITE."""
    first_write: Pairs
    birth: Pairs
    foreign: int

    @classmethod
    def of(cls, outcome: Outcome) -> Log:
        """Count an outcome's records by pair."""
        records = outcome.records
        inside = (records["page"] >= 0) & (records["page"] < ARENA_PAGES)
        inside &= (records["epoch"] >= 1) & (records["epoch"] <= C["EPOCHS"])
        foreign = int((~inside).sum())
        records = records[inside]
        flags = records["flags"]
        unknown = (flags & C["SENTINEL_ACCESS_UNKNOWN"]) != 0
        again = (flags & C["SENTINEL_ACCESS_AGAIN"]) != 0
        write = (flags & C["SENTINEL_ACCESS_WRITE"]) != 0
        birth = (flags & C["SENTINEL_ACCESS_BIRTH"]) != 0

        def count(chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
            pairs = np.zeros(outcome.truth.shape, np.int64)
            np.add.at(pairs, (records["epoch"][chosen], records["page"][chosen]), 1)
            return pairs

        first = ~unknown & ~again
        return cls(
            count=count(np.ones(len(records), np.bool_)),
            first=count(first),
            again=count(again & ~unknown) > 0,
            again_write=count(again & write & ~unknown) > 0,
            unknown=count(unknown & ~again) > 0,
            unknown_write=count(unknown & again) > 0,
            write=count(write & ~unknown) > 0,
            first_write=count(write & first) > 0,
            birth=count(birth) > 0,
            foreign=foreign,
        )


def _whole_huge_pages(pairs: Pairs) -> Pairs:
    """Combine the flags of the pages of each 2 MiB area: the returned flag of a pair is set if, in
    the pair's epoch, the flag of any page of its area is set."""
    blocks = pairs.reshape(len(pairs), -1, HUGE_PAGES).any(axis=2)
    return np.repeat(blocks, HUGE_PAGES, axis=1)


def _names(prefix: str, value: int) -> str:
    bits = {
        name.removeprefix(f"{prefix}_"): bit
        for name, bit in C.items()
        if name.startswith(f"{prefix}_")
    }
    return "|".join(name for name, bit in bits.items() if value & bit) or "nothing"


def _records(outcome: Outcome, epoch: int, page: int) -> str:
    chosen = outcome.records[
        (outcome.records["epoch"] == epoch) & (outcome.records["page"] == page)
    ]
    return ", ".join(f"flags {flags} node {node}" for _, _, node, flags in chosen) or "none"
