# SPDX-License-Identifier: Apache-2.0
"""The truth test: compares the module's log with the true accesses of random programs.

The test runs on each kernel. hypothesis shrinks a failing program and prints it. Save the printed
program as a file in truth/kept/ to run it as a regression test.
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
"""Smallest allowed recall and precision over all programs of a kind."""
WRITE_RATE = 0.999
"""Smallest allowed recall of writes."""
UNKNOWN_SHARE_MAX = 0.05
"""Largest allowed Score.unknown_share under NUMA balancing."""

BASIC = Kind()
UNARMING = Kind(unarming=True)
HUGE = Kind(unarming=True, huge=True)
PRECISE = Kind(unarming=True, precise=True)
REARMING = Kind(unarming=True, precise=True, rearm=True)
BALANCING = Kind(balancing=True)

COUNTS = {
    "ci": {BASIC: 6, UNARMING: 8, HUGE: 4, PRECISE: 4, REARMING: 3, BALANCING: 2},
    "long": {BASIC: 60, UNARMING: 80, HUGE: 40, PRECISE: 40, REARMING: 30, BALANCING: 20},
}[PROFILE]
"""The number of programs of each kind, on each kernel."""

ENABLE_BALANCING = """
set -e
cd /sys/kernel/debug/sched/numa_balancing
echo 1 > scan_delay_ms
echo 10 > scan_period_min_ms
echo 20 > scan_period_max_ms
# The kernel scans a thread's memory at most every 1000 ms / (2560 / scan_size_mb) of its CPU time.
echo 16 > scan_size_mb
sysctl -q -w kernel.numa_balancing=1
"""
DISABLE_BALANCING = "sysctl -q -w kernel.numa_balancing=0"


@pytest.fixture(scope="session")
def truth_program(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter kmod-truth, built with the guest's compiler."""
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
    """Run one program and return its score. If there are mistakes, fails and lists them."""
    verdict = judge(runner.run(program), program)
    assert not verdict.mistakes, "\n".join(["", *verdict.mistakes])
    return verdict.score


def explore(runner: Runner, kind: Kind, printed: list[str]) -> Score:
    """Run COUNTS[kind] programs; returns the sum of their scores and appends it to `printed`."""
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
        printed.append(f"{kind}: {total}")
    return total


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], suite: str) -> Iterator[list[str]]:
    """Lines that are printed at the end of the test, even if it fails."""
    lines: list[str] = []
    yield lines
    with capsys.disabled():
        for line in lines:
            print(f"\ntruth, {suite}, {line}", end="")


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_kept_programs_are_logged_correctly(runner: Runner, path: Path) -> None:
    check(runner, from_text(path.read_text()))


def test_without_unarming_no_access_is_unknown(runner: Runner, printed: list[str]) -> None:
    score = explore(runner, BASIC, printed)
    assert score.unknown == 0
    check_rates(score)


def test_unarmed_pages_are_unknown(runner: Runner, printed: list[str]) -> None:
    score = explore(runner, UNARMING, printed)
    assert score.unknown > 0
    check_rates(score)


def test_huge_pages_are_logged_correctly(runner: Runner, printed: list[str]) -> None:
    score = explore(runner, HUGE, printed)
    check_rates(score)


def test_precise_writes_are_logged(runner: Runner, printed: list[str]) -> None:
    score = explore(runner, PRECISE, printed)
    assert score.again > 0
    assert score.write_recall >= WRITE_RATE
    check_rates(score)


def test_rearming_within_epochs_logs_further_accesses(runner: Runner, printed: list[str]) -> None:
    score = explore(runner, REARMING, printed)
    assert score.again > 0
    assert score.write_recall >= WRITE_RATE
    check_rates(score)


def test_numa_balancing_leaves_few_pages_unknown(
    runner: Runner, kernel_guest: Guest, printed: list[str]
) -> None:
    kernel_guest.run(ENABLE_BALANCING)
    before = vmstat(kernel_guest)
    try:
        score = explore(runner, BALANCING, printed)
    finally:
        kernel_guest.run(DISABLE_BALANCING)
    after = vmstat(kernel_guest)
    changed = {
        name: after[name] - before[name]
        for name in ("numa_pte_updates", "numa_hint_faults", "numa_pages_migrated")
    }
    printed.append(f"changes in /proc/vmstat: {changed}")
    assert changed["numa_pte_updates"] > 0
    assert score.unknown_share <= UNKNOWN_SHARE_MAX
    check_rates(score)


def check_rates(score: Score) -> None:
    assert score.accessed > 0
    assert score.recall >= RATE
    assert score.precision >= RATE
