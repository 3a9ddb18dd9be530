# SPDX-License-Identifier: Apache-2.0
"""The truth test: what random programs truly accessed, against the module's log, on each kernel.

A failing program is printed as hypothesis found and shrank it; saved as a file
of kept/, it is run again by every later test.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.conftest import PROFILE
from tests.vm.guest import Guest
from tests.vm.image import Image
from tests.vm.rootfs import BUILD_PLACE, in_root

from .truth.judge import Score, judge
from .truth.programs import Kind, Program, from_text, programs
from .truth.runner import Runner

pytestmark = [pytest.mark.guest, pytest.mark.timeout(3600)]

TRUTH = "/root/kmod-truth"
KEPT = sorted((Path(__file__).parent / "truth" / "kept").glob("*.txt"))
RATE = 0.9999
"""Least recall and precision over all programs of a kind."""
WRITE_RATE = 0.999
UNKNOWN_SHARE = 0.05

CALM = Kind()
DISTURBED = Kind(unarming=True)
HUGE = Kind(unarming=True, huge=True)
PRECISE = Kind(unarming=True, precise=True)
AGAIN = Kind(unarming=True, precise=True, rearm=True)
BALANCED = Kind(restless=True)

COUNTS = {
    "ci": {CALM: 6, DISTURBED: 8, HUGE: 4, PRECISE: 4, AGAIN: 3, BALANCED: 2},
    "long": {CALM: 60, DISTURBED: 80, HUGE: 40, PRECISE: 40, AGAIN: 30, BALANCED: 20},
}[PROFILE]
"""Programs of each kind, on each kernel."""

BALANCING = """
set -e
cd /sys/kernel/debug/sched/numa_balancing
echo 1 > scan_delay_ms
echo 10 > scan_period_min_ms
echo 20 > scan_period_max_ms
sysctl -q -w kernel.numa_balancing=1
"""
NO_BALANCING = "sysctl -q -w kernel.numa_balancing=0"


@pytest.fixture(scope="session")
def truth_program(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that runs programs, built with the guest's compiler."""
    place = tmp_path_factory.mktemp("kmod-truth")
    source = "/root/sentineld/tests/vm/kmod/truth"
    make = f"make -C {source} OUT={BUILD_PLACE}/kmod-truth"
    in_root(make, {place: BUILD_PLACE}, image=image)
    return place / "kmod-truth"


@pytest.fixture
def runner(kernel_guest: Guest, truth_program: Path) -> Iterator[Runner]:
    """Runs programs in a shared guest of the suite."""
    if kernel_guest.run(f"test -x {TRUTH}", check=False).returncode != 0:
        kernel_guest.put(truth_program, TRUTH)
    with contextlib.closing(Runner(kernel_guest, TRUTH)) as runner:
        yield runner


def vmstat(guest: Guest) -> dict[str, int]:
    pairs = (line.split() for line in guest.run("cat /proc/vmstat").stdout.splitlines())
    return {name: int(value) for name, value in pairs}


def check(runner: Runner, program: Program) -> Score:
    """Run one program; fail with what was wrong about it."""
    verdict = judge(runner.run(program), program)
    assert not verdict.mistakes, "\n".join(["", *verdict.mistakes])
    return verdict.score


def explore(runner: Runner, kind: Kind, say: list[str]) -> Score:
    """Run as many programs of a kind as the profile says; the sum of their scores, said too."""
    total = Score()

    @settings(
        max_examples=COUNTS[kind],
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(kind))
    def one(program: Program) -> None:
        nonlocal total
        total += check(runner, program)

    try:
        one()
    finally:
        say.append(f"{kind}: {total}")
    return total


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], suite: str) -> Iterator[list[str]]:
    """Lines to print when the test is over, whether it passed or not."""
    lines: list[str] = []
    yield lines
    with capsys.disabled():
        for line in lines:
            print(f"\ntruth, {suite}, {line}", end="")


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_kept_program(runner: Runner, path: Path) -> None:
    check(runner, from_text(path.read_text()))


def test_calm_programs(runner: Runner, say: list[str]) -> None:
    score = explore(runner, CALM, say)
    assert score.unknown == 0
    check_rates(score)


def test_disturbed_programs(runner: Runner, say: list[str]) -> None:
    score = explore(runner, DISTURBED, say)
    assert score.unknown > 0
    check_rates(score)


def test_programs_with_huge_pages(runner: Runner, say: list[str]) -> None:
    score = explore(runner, HUGE, say)
    check_rates(score)


def test_precise_writes(runner: Runner, say: list[str]) -> None:
    score = explore(runner, PRECISE, say)
    assert score.again > 0
    assert score.write_recall >= WRITE_RATE
    check_rates(score)


def test_arming_again_within_epochs(runner: Runner, say: list[str]) -> None:
    score = explore(runner, AGAIN, say)
    assert score.again > 0
    assert score.write_recall >= WRITE_RATE
    check_rates(score)


def test_numa_balancing(runner: Runner, kernel_guest: Guest, say: list[str]) -> None:
    kernel_guest.run(BALANCING)
    before = vmstat(kernel_guest)
    try:
        score = explore(runner, BALANCED, say)
    finally:
        kernel_guest.run(NO_BALANCING)
    after = vmstat(kernel_guest)
    changed = {
        name: after[name] - before[name]
        for name in ("numa_pte_updates", "numa_hint_faults", "numa_pages_migrated")
    }
    say.append(f"of the kernel meanwhile: {changed}")
    assert changed["numa_pte_updates"] > 0
    assert score.unknown_share <= UNKNOWN_SHARE
    check_rates(score)


def check_rates(score: Score) -> None:
    assert score.accessed > 0
    assert score.recall >= RATE
    assert score.precision >= RATE
