# SPDX-License-Identifier: Apache-2.0
"""Managed trainings use huge pages for planned tensors, as /proc/PID/smaps shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.shim.residency import resident_arena_bytes
from tests.charged_steps import meter_within
from tests.integration.test_emulated import REST, ManagedRun, wait

pytest.importorskip("torch")

MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HUGE_BYTES = 2 << 20

pytestmark = pytest.mark.skipif(
    not MODE.exists() or "[never]" in MODE.read_text(encoding="ascii"),
    reason="this kernel has huge pages disabled",
)


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The daemon's folder; its configuration sets huge_pages to the fixture's parameter."""
    (tmp_path / "config.d").mkdir()
    (tmp_path / "config.d" / "huge.toml").write_text(f'huge_pages = "{request.param}"\n')
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Iterator[ManagedRun]:
    started = ManagedRun(folder, "perceptron", alone=REST)
    yield started
    started.close()


def advised_bytes(pid: int) -> tuple[int, int]:
    """Return (bytes, bytes on huge pages) of the mappings to which MADV_HUGEPAGE was applied."""
    advised = huge = size = anonymous = 0
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
        name, *fields = line.split()
        if name == "Size:":
            size = int(fields[0]) * 1024
        elif name == "AnonHugePages:":
            anonymous = int(fields[0]) * 1024
        elif name == "VmFlags:" and "hg" in fields:
            advised, huge = advised + size, huge + anonymous
    return advised, huge


@pytest.mark.parametrize("folder", ["auto"], indirect=True)
def test_a_planned_arena_uses_huge_pages(run: ManagedRun) -> None:
    run.manage("fast-only")
    wait(lambda: advised_bytes(run.pid)[1] >= HUGE_BYTES)
    advised, huge = advised_bytes(run.pid)
    assert advised % HUGE_BYTES == 0
    assert huge <= advised <= resident_arena_bytes(run.pid)
    assert run.status()["diverged_steps"] == 0
    run.check_losses()


@pytest.mark.parametrize("folder", ["auto"], indirect=True)
def test_dropping_and_moving_pages_keeps_budget_and_losses(run: ManagedRun) -> None:
    pytest.importorskip("scipy")
    session = run.manage("auto")
    meter_within(session["budget_bytes"], lambda: run.meter(4), run.status)
    assert run.status()["diverged_steps"] == 0
    run.check_losses()


@pytest.mark.parametrize("folder", ["off"], indirect=True)
def test_huge_pages_can_be_switched_off(run: ManagedRun) -> None:
    run.manage("fast-only")
    assert advised_bytes(run.pid) == (0, 0)
    run.check_losses()
