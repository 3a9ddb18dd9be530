# SPDX-License-Identifier: Apache-2.0
"""Explicit placement in a real training on emulated tiers: real daemon, real shim, real plans."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sentineld.model.plan import Space
from sentineld.observe.control_segment import ControlSegment
from sentineld.observe.residency_segment import ResidencySegment
from tests.integration.paged_run import DISK_RATES, paging, tiers
from tests.integration.shim.daemon_side import ROOT
from tests.integration.test_daemon import Daemon
from tests.integration.test_emulated import REST, TIERS, ManagedRun, wait
from tests.unit.shim.paged import pager_problem

pytest.importorskip("torch")

from tests.integration.shim import place_train

SCRIPT = Path(place_train.__file__)
PAGE = 4096
FIRST_BYTES = 512 * 768 * 4
SECOND_BYTES = 768 * 768 * 4
SLOW_BORN_BYTES = place_train.SLOW_ROWS * place_train.COLUMNS * 4
FAST_BORN_BYTES = place_train.FAST_ROWS * place_train.COLUMNS * 4
STEPS = 30


class PlacedRun(ManagedRun):
    """A training that places tensors."""

    def __init__(self, folder: Path, tiers: tuple[str, ...] = TIERS, config: str = "") -> None:
        self.later = folder / "later"
        alone = (*REST, "--later", str(self.later))
        super().__init__(
            folder, "perceptron", alone=alone, script=SCRIPT, tiers=tiers, config=config
        )

    def tensors(self) -> list[dict[str, Any]]:
        done = self.ctl("tensors", "--json")
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)["tensors"]
        return found

    def placed(self) -> set[tuple[int, str]]:
        """(bytes, tier) of all placed tensors."""
        return {(one["bytes"], one["placed"]) for one in self.tensors() if one["placed"]}

    def tiers(self) -> dict[tuple[int, str], set[int]]:
        """The tiers on which the resident pages of placed tensors are now. The keys are (a tensor's
        bytes, the tier on which it is placed); tensors with equal keys have one entry."""
        while True:
            layout = self.status()["layout_id"]
            tensors = [one for one in self.tensors() if one["placed"]]
            with opened(self.pid, "sentinel-control") as fd:
                control = ControlSegment(fd)
            with opened(self.pid, "sentinel-residency") as fd:
                segment = ResidencySegment(fd)
            found: dict[tuple[int, str], set[int]] = {}
            for tensor in tensors:
                space, begin = Space.ARENA, tensor["offset"]
                if tensor["slot"] is None:
                    space, begin = Space.HEAP, tensor["address"] - control.heap_base
                pages = segment.maps[space][begin // PAGE : -(-(begin + tensor["bytes"]) // PAGE)]
                nodes = np.unique(pages[pages != 0]).astype(np.int64) - 1
                found.setdefault((tensor["bytes"], tensor["placed"]), set()).update(nodes.tolist())
            control.close()
            segment.close()
            if (
                self.status()["layout_id"] == layout
            ):  # otherwise, a new layout has made the offsets outdated
                return found


@contextmanager
def opened(pid: int, name: str) -> Iterator[int]:
    """Open a process's memfd of this name. If the process has several, open the one with the
    highest descriptor number in the process."""
    fd = _open_memfd(pid, name)
    try:
        yield fd
    finally:
        os.close(fd)


def _open_memfd(pid: int, name: str) -> int:
    for file in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda one: -int(one.name)):
        with suppress(FileNotFoundError):  # the process has closed the descriptor
            if name in os.readlink(file):
                return os.open(file, os.O_RDWR)
    raise AssertionError(f"process {pid} has no memfd {name}")


@pytest.fixture(autouse=True)
def _tests_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """place_train.py imports a model from the package `tests`."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[PlacedRun]:
    started = PlacedRun(tmp_path)
    yield started
    started.close()


@pytest.mark.parametrize("policy", ["sentinel+spill", "auto", "static"])
def test_placed_tensors_stay_on_their_tiers(run: PlacedRun, policy: str) -> None:
    if policy != "sentinel+spill":
        pytest.importorskip("scipy")
    run.manage(policy, "40%")
    lasting = [(FIRST_BYTES, "fast"), (SECOND_BYTES, "slow")]
    born = [(SLOW_BORN_BYTES, "slow"), (FAST_BORN_BYTES, "fast")]
    assert {*lasting, *born} <= run.placed()
    expected = {(size, tier): {int(tier == "slow")} for size, tier in (*lasting, *born)}
    wait(lambda: {one: run.tiers()[one] for one in expected} == expected)
    begun = run.status()["step"]
    while run.status()["step"] < begun + STEPS:
        now = run.tiers()
        # Dead pages may be dropped, but every resident page is on the tier of its tensor.
        assert all(now[one] <= tiers for one, tiers in expected.items()), now
    shown = run.daemon.ctl("plan", "show", str(run.pid))
    assert "the script has placed" in shown.stdout
    assert "placed fast" in shown.stdout
    assert run.status()["diverged_steps"] == 0
    run.check_losses()


def test_a_change_of_placement_changes_the_live_plan(run: PlacedRun) -> None:
    run.manage("sentinel+spill", "40%")
    assert (SECOND_BYTES, "slow") in run.placed()
    run.later.touch()
    wait(lambda: (SECOND_BYTES, "fast") in run.placed())
    assert (FIRST_BYTES, "fast") not in run.placed()
    wait(lambda: run.tiers()[SECOND_BYTES, "fast"] == {0})
    assert run.status()["diverged_steps"] == 0
    run.check_losses()


def test_more_placed_bytes_than_the_budget_are_refused(run: PlacedRun) -> None:
    done = run.daemon.ctl("attach", str(run.pid), "--fast", "1M", "--policy", "sentinel+spill")
    assert done.returncode == 0, done.stderr
    wait(lambda: run.status()["state"] == "registered")
    reason = run.status()["reason"]
    assert "the script has placed" in reason
    assert "the budget leaves" in reason
    run.manage("sentinel+spill", "40%")
    run.check_losses()


def test_a_restarted_daemon_keeps_the_placements(run: PlacedRun) -> None:
    run.manage("sentinel+spill", "40%")
    before, layout = run.placed(), run.status()["layout_id"]
    run.kill()
    run.daemon = Daemon(run.folder, *TIERS)
    wait(lambda: run.session() is not None and run.status()["state"] == "managed")
    begun = run.status()["step"]
    wait(lambda: run.status()["step"] > begun + 5)
    # The shim reports the same placements again, so there is no reason for another plan.
    # The live plan may still be corrected, for example because other processes slow down the mover.
    now = run.status()
    assert now["layout_id"] == layout or now["reason"].startswith("the corrected plan"), now
    assert run.placed() == before
    wait(lambda: run.tiers()[SECOND_BYTES, "slow"] == {1})
    run.check_losses()


@pytest.mark.skipif(pager_problem() is not None, reason=pager_problem() or "")
def test_on_paged_tiers_tensors_move_to_their_tiers(tmp_path: Path) -> None:
    run = PlacedRun(tmp_path, tiers(tmp_path), DISK_RATES)
    try:
        run.manage("static", "60%")
        wait(lambda: run.tiers()[FIRST_BYTES, "fast"] == {0})
        # Accesses to slow pages need frames, for which the pager may also evict fast pages. So the
        # two tensors need not be on their tiers at the same moment.
        wait(lambda: run.tiers()[SECOND_BYTES, "slow"] == {1})
        assert paging(run)["bytes_written"] > 0
        run.check_losses()
    finally:
        run.close()
