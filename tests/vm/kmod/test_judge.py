# SPDX-License-Identifier: Apache-2.0
"""truth/judge.py, the judge of test_truth.py, finds each kind of mistake, and none in a correct
log."""

from __future__ import annotations

import pytest

from .truth.judge import judge
from .truth.outcome import C, parse
from .truth.programs import Program, from_text

READ = C["TRUTH_READ"] | C["TRUTH_READ_FIRST"]
WRITE = C["TRUTH_WRITE"] | C["TRUTH_WRITE_FIRST"]
READ_WRITE = READ | C["TRUTH_WRITE"]
ARMED = C["MARK_WATCHED"] | C["MARK_PRESENT"]
CHANGED = ARMED | C["MARK_CHANGED"]
PAUSED = ARMED | C["MARK_PAUSED"]
ABSENT = C["MARK_WATCHED"]

SEEN = 0
SEEN_WRITE = C["SENTINEL_ACCESS_WRITE"]
BIRTH = C["SENTINEL_ACCESS_BIRTH"]
UNKNOWN = C["SENTINEL_ACCESS_UNKNOWN"]
AGAIN = C["SENTINEL_ACCESS_AGAIN"]

PLAIN = Program(())
PRECISE = Program((), precise=True)


def mistakes(program: Program, done: int, marks: int, *flags: int) -> list[str]:
    """The mistakes that the judge finds for one page in one epoch.

    flags: one value for each record of this page and epoch.
    """
    lines = [f"p 1 7 1 {done} {marks}", *(f"a 1 7 0 {flag} 0" for flag in flags), "end 0"]
    return judge(parse(lines), program).mistakes


@pytest.mark.parametrize(
    ("program", "done", "marks", "flags"),
    [
        (PLAIN, READ, ARMED, [SEEN]),
        (PLAIN, READ_WRITE, ARMED, [SEEN]),
        (PLAIN, WRITE, ARMED, [SEEN_WRITE]),
        (PLAIN, WRITE, ABSENT, [BIRTH | SEEN_WRITE]),
        (PLAIN, 0, ARMED, []),
        (PLAIN, 0, CHANGED, [UNKNOWN]),
        (PLAIN, READ, CHANGED, [UNKNOWN]),
        (PLAIN, READ, PAUSED, []),
        (PLAIN, READ, 0, []),
        (PRECISE, READ_WRITE, ARMED, [SEEN, SEEN_WRITE | AGAIN]),
        (PRECISE, READ_WRITE, CHANGED, [SEEN, UNKNOWN | AGAIN]),
    ],
)
def test_correct_records_pass(program: Program, done: int, marks: int, flags: list[int]) -> None:
    assert mistakes(program, done, marks, *flags) == []


@pytest.mark.parametrize(
    ("program", "done", "marks", "flags", "mistake"),
    [
        (PLAIN, READ, ARMED, [], "neither recorded nor marked unknown"),
        (PLAIN, READ, CHANGED, [], "neither recorded nor marked unknown"),
        (PLAIN, 0, ARMED, [SEEN], "not accessed"),
        (PLAIN, 0, PAUSED, [SEEN], "not accessed"),
        (PLAIN, 0, ARMED, [UNKNOWN], "without a cause"),
        (PLAIN, READ, 0, [SEEN], "not watched"),
        (PLAIN, READ, ARMED, [SEEN, SEEN], "more than one first record"),
        (PLAIN, READ, CHANGED, [SEEN, UNKNOWN], "both recorded and marked unknown"),
        (PLAIN, READ, ARMED, [SEEN_WRITE], "not written"),
        (PLAIN, WRITE, ARMED, [SEEN], "recorded as a read"),
        (PLAIN, READ_WRITE, ARMED, [SEEN_WRITE], "recorded as a write"),
        (PLAIN, READ, ARMED, [BIRTH], "a birth, but the page was present"),
        (PLAIN, READ, ABSENT, [SEEN], "no birth"),
        (PLAIN, READ_WRITE, ARMED, [SEEN, SEEN_WRITE | AGAIN], "AGAIN was not requested"),
        (PRECISE, READ_WRITE, ARMED, [SEEN], "no WRITE"),
        (PRECISE, READ, ARMED, [SEEN, AGAIN], "AGAIN was not requested"),
        (PRECISE, READ_WRITE, ARMED, [SEEN_WRITE | AGAIN], "without a first record"),
    ],
)
def test_each_mistake_is_found(
    program: Program, done: int, marks: int, flags: list[int], mistake: str
) -> None:
    found = mistakes(program, done, marks, *flags)
    assert any(mistake in line for line in found), found


@pytest.mark.parametrize(
    ("lines", "mistake"),
    [
        (["end 0", "lost 3"], "3 records lost"),
        (["wrong 1", "end 0"], "1 words had a wrong value"),
        (["end 1"], "ended with status 1"),
        (["FAILED access.c:1: memory: no", "end 0"], "FAILED"),
        (["a 1 4096 0 0 0", "end 0"], "outside the arena"),
    ],
)
def test_failures_reported_by_the_program_are_mistakes(lines: list[str], mistake: str) -> None:
    assert any(mistake in line for line in judge(parse(lines), PLAIN).mistakes)


def test_a_run_of_unknown_pages_lowers_recall_only_where_judged() -> None:
    lines = [f"p 1 0 8 {READ} {CHANGED}", f"a 1 0 255 {UNKNOWN} 2", "a 1 3 0 0 0", "end 0"]
    score = judge(parse(lines), PLAIN).score
    assert (score.unknown, score.judged, score.seen) == (3, 5, 1)
    assert score.recall == 0.2
    assert score.precision == 1.0
    assert score.unknown_share == 3 / 8


def test_a_program_is_restored_from_its_text() -> None:
    program = Program(("threads 2", "region 0 8 0 1 0", "epoch", "read 1 0 8 1"), True, 1000, True)
    assert from_text(f"# a comment\n{program.text}") == program
