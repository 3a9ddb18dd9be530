# SPDX-License-Identifier: Apache-2.0
"""What the next daemon finds of a session, whenever this one dies."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from sentineld.session.live.shapes import Planned, Shape
from sentineld.session.state import Saved, StateFiles
from tests.unit.plan.toys import large_plan, large_profile

NAME = f"{os.getpid()}-1"
SAVED = Saved("20%", "auto", "cxl")


def planned(budget_bytes: int) -> Planned:
    profile, plan = large_profile(), replace(large_plan(), budget_bytes=budget_bytes)
    return Planned(Shape(2, "abc"), profile, profile, plan, budget_bytes, 1.5, 1e8)


@pytest.fixture
def states(tmp_path: Path) -> StateFiles:
    return StateFiles(tmp_path)


def files(tmp_path: Path) -> set[str]:
    return {file.name for file in (tmp_path / "sessions").iterdir()}


def test_nothing_is_known_of_a_session_that_was_never_saved(states: StateFiles) -> None:
    assert states.load(NAME, 0) is None


def test_a_session_without_a_plan(states: StateFiles) -> None:
    states.attached(NAME, SAVED)
    assert states.load(NAME, 0) == (SAVED, None, False)
    assert states.load(NAME, 7) == (SAVED, None, False)  # a layout that is none of ours


def test_a_plan_is_known_before_it_is_live_and_after(states: StateFiles) -> None:
    states.attached(NAME, SAVED)
    states.entering(NAME, SAVED, 7, planned(4096))
    for entered in (False, True):
        left = states.load(NAME, 7)
        assert left is not None
        assert left.entered == entered
        found = left.planned
        assert found is not None
        assert (found.shape, found.budget_bytes) == (Shape(2, "abc"), 4096)
        assert found.migration_bytes_per_s == 1e8
        assert found.plan.moves.tobytes() == large_plan().moves.tobytes()
        states.live(NAME, 7)


def test_while_plans_take_turns_both_are_known(states: StateFiles, tmp_path: Path) -> None:
    states.attached(NAME, SAVED)
    states.entering(NAME, SAVED, 7, planned(4096))
    states.live(NAME, 7)
    states.entering(NAME, SAVED, 8, planned(8192))
    budgets = []
    for layout_id in (7, 8):
        left = states.load(NAME, layout_id)
        assert left is not None
        assert left.planned is not None
        budgets.append((left.planned.budget_bytes, left.entered))
    assert budgets == [(4096, True), (8192, False)]
    states.live(NAME, 8)
    assert files(tmp_path) == {f"{NAME}.json", f"{NAME}.8.npz"}
    left = states.load(NAME, 7)
    assert left is not None
    assert left.planned is None


def test_each_plan_is_known_with_what_it_was_asked_for(states: StateFiles) -> None:
    more = replace(SAVED, fast="30%", policy="sentinel")
    states.attached(NAME, SAVED)
    states.entering(NAME, SAVED, 7, planned(4096))
    states.live(NAME, 7)
    states.entering(NAME, more, 8, planned(8192))
    for layout_id, saved in ((7, SAVED), (8, more)):
        left = states.load(NAME, layout_id)
        assert left is not None
        assert (left.saved.fast, left.saved.policy) == (saved.fast, saved.policy)


def test_the_rows_of_an_earlier_daemon_were_asked_for_by_the_attach(
    states: StateFiles, tmp_path: Path
) -> None:
    states.attached(NAME, SAVED)
    states.entering(NAME, SAVED, 7, planned(4096))
    file = tmp_path / "sessions" / f"{NAME}.json"
    found = json.loads(file.read_text())
    for word in ("fast", "policy"):
        del found["plans"][0][word]
    file.write_text(json.dumps(found))
    states.live(NAME, 7)
    states.entering(NAME, replace(SAVED, fast="30%"), 8, planned(8192))
    left = states.load(NAME, 7)
    assert left is not None
    assert left.saved.fast == SAVED.fast


def test_who_is_profiled_again_has_no_plan(states: StateFiles, tmp_path: Path) -> None:
    states.attached(NAME, SAVED)
    states.entering(NAME, SAVED, 7, planned(4096))
    states.attached(NAME, SAVED)
    assert states.load(NAME, 7) == (SAVED, None, False)
    assert files(tmp_path) == {f"{NAME}.json"}


def test_a_detached_session_is_forgotten(states: StateFiles, tmp_path: Path) -> None:
    states.attached(NAME, SAVED)
    states.entering(NAME, SAVED, 7, planned(4096))
    states.forget(NAME)
    assert not files(tmp_path)
    states.forget(NAME)


def test_what_a_full_disk_left_is_removed_with_the_next(states: StateFiles, tmp_path: Path) -> None:
    states.attached(NAME, SAVED)
    (tmp_path / "sessions" / f"{NAME}.7.npz.writing").write_bytes(b"half")
    states.attached(NAME, SAVED)
    assert files(tmp_path) == {f"{NAME}.json"}


def test_the_file_of_an_earlier_daemon_is_attached_by(states: StateFiles, tmp_path: Path) -> None:
    old = {"fast": "20%", "policy": "auto", "budget_bytes": 1, "layout_id": 7, "emulated": "cxl"}
    (tmp_path / "sessions" / f"{NAME}.json").write_text(json.dumps(old))
    (tmp_path / "sessions" / f"{NAME}.npz").write_bytes(b"its plan")
    assert states.load(NAME, 7) == (SAVED, None, False)
    states.attached(NAME, SAVED)
    assert files(tmp_path) == {f"{NAME}.json"}


def test_another_process_of_the_same_pid_inherits_nothing(states: StateFiles) -> None:
    states.attached(NAME, SAVED)
    assert states.load(NAME + "2", 0) is None


def test_what_dead_processes_left_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    for name in ("4194999-5.json", "4194999-5.7.npz", "no-pid.json", f"{NAME}.json"):
        (folder / name).write_text("")
    StateFiles(tmp_path)
    assert files(tmp_path) == {f"{NAME}.json"}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"plans": 3}', '{"fast": "20%", "plans": []}', "\xff"]
)
def test_damaged_parameters_are_told_and_not_used(
    states: StateFiles, tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sessions" / f"{NAME}.json").write_bytes(text.encode("latin-1"))
    with caplog.at_level(logging.WARNING):
        assert states.load(NAME, 7) is None
    assert "damaged" in caplog.text


def test_a_damaged_plan_is_told_and_not_used(
    states: StateFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    states.attached(NAME, SAVED)
    states.entering(NAME, SAVED, 7, planned(4096))
    (tmp_path / "sessions" / f"{NAME}.7.npz").write_bytes(b"no plan")
    with caplog.at_level(logging.WARNING):
        left = states.load(NAME, 7)
    assert left is not None
    assert left.planned is None
    assert "can't be read" in caplog.text


def test_what_can_not_be_written_is_told(
    states: StateFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "sessions"
    folder.rmdir()
    folder.write_text("")
    with caplog.at_level(logging.WARNING):
        states.attached(NAME, SAVED)
        states.entering(NAME, SAVED, 7, planned(4096))
    assert "can't be written" in caplog.text
