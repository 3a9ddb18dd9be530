# SPDX-License-Identifier: Apache-2.0
"""Managed trainings whose planned tensors lie on huge pages, by the kernel's own word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.shim.residency import resident_arena_bytes
from tests.integration.test_emulated import Life, wait

pytest.importorskip("torch")

MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HUGE_BYTES = 2 << 20

pytestmark = pytest.mark.skipif(
    not MODE.exists() or "[never]" in MODE.read_text(encoding="ascii"),
    reason="this kernel makes no huge pages",
)


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Of a daemon, with what its config says of huge pages."""
    (tmp_path / "config.d").mkdir()
    (tmp_path / "config.d" / "huge.toml").write_text(f'huge_pages = "{request.param}"\n')
    return tmp_path


@pytest.fixture
def life(folder: Path) -> Iterator[Life]:
    begun = Life(folder, "perceptron")
    yield begun
    begun.close()


def advised_bytes(pid: int) -> tuple[int, int]:
    """(that may be huge pages, that are): of the mappings that somebody asked for them for."""
    advised = huge = size = anonymous = 0
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
        name, *words = line.split()
        if name == "Size:":
            size = int(words[0]) * 1024
        elif name == "AnonHugePages:":
            anonymous = int(words[0]) * 1024
        elif name == "VmFlags:" and "hg" in words:
            advised, huge = advised + size, huge + anonymous
    return advised, huge


@pytest.mark.parametrize("folder", ["auto"], indirect=True)
def test_a_planned_arena_is_made_of_huge_pages_where_it_may_be(life: Life) -> None:
    life.manage("fast-only")
    wait(lambda: advised_bytes(life.pid)[1] >= HUGE_BYTES)
    advised, huge = advised_bytes(life.pid)
    assert advised % HUGE_BYTES == 0
    assert huge <= advised <= resident_arena_bytes(life.pid)
    assert life.now()["diverged_steps"] == 0
    life.check_losses()


@pytest.mark.parametrize("folder", ["auto"], indirect=True)
def test_pages_that_are_given_back_and_moved_keep_budget_and_losses(life: Life) -> None:
    pytest.importorskip("scipy")
    session = life.manage("auto")
    for step in life.meter(4):
        assert step["charged_bytes_max"] <= session["budget_bytes"]
    assert life.now()["diverged_steps"] == 0
    life.check_losses()


@pytest.mark.parametrize("folder", ["off"], indirect=True)
def test_none_are_asked_for_where_the_config_says_so(life: Life) -> None:
    life.manage("fast-only")
    assert advised_bytes(life.pid) == (0, 0)
    life.check_losses()
