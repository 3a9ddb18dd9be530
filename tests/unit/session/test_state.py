# SPDX-License-Identifier: Apache-2.0
"""The state that the next daemon restores, no matter when this daemon dies."""

from __future__ import annotations

import errno
import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from sentineld.observe.pidfd import start_time_ticks
from sentineld.plan.division import Terms
from sentineld.session import state
from sentineld.session.live.shapes import Planned, Shape
from sentineld.session.state import Nodes, Saved, StateFiles
from tests.unit.descriptors import no_descriptors
from tests.unit.plan.toys import large_plan, large_profile, toy_profile

NAME = f"{os.getpid()}-{start_time_ticks(os.getpid())}"
SAVED = Saved("20%", "auto", "cxl", nodes=((0,), (1,)))


def planned(budget_bytes: int) -> Planned:
    profile, plan = large_profile(), replace(large_plan(), budget_bytes=budget_bytes)
    return Planned(Shape(2, "abc", sizes_vary=True), profile, profile, plan, budget_bytes, 1.5, 1e8)


@pytest.fixture
def states(tmp_path: Path) -> StateFiles:
    return StateFiles(tmp_path)


def files(tmp_path: Path) -> set[str]:
    return {file.name for file in (tmp_path / "sessions").iterdir()}


def test_a_session_that_was_never_saved_is_not_restored(states: StateFiles) -> None:
    assert states.load(NAME, 0) is None


def test_a_session_without_a_plan(states: StateFiles) -> None:
    states.attached(NAME, SAVED)
    assert states.load(NAME, 0) == (SAVED, None, False)
    assert states.load(NAME, 7) == (SAVED, None, False)  # no plan with layout 7 was saved


def test_a_plan_is_restored_before_and_after_it_is_live(states: StateFiles) -> None:
    states.attached(NAME, SAVED)
    states.entering(NAME, SAVED, 7, planned(4096))
    for entered in (False, True):
        restored = states.load(NAME, 7)
        assert restored is not None
        assert restored.entered == entered
        found = restored.planned
        assert found is not None
        assert (found.shape, found.budget_bytes) == (Shape(2, "abc", sizes_vary=True), 4096)
        assert found.migration_bytes_per_s == 1e8
        assert found.plan.moves.tobytes() == large_plan().moves.tobytes()
        states.live(NAME, 7)


def test_terms_are_restored(states: StateFiles) -> None:
    shares = replace(SAVED, terms=Terms(2.0, 4096))
    states.attached(NAME, shares)
    assert states.load(NAME, 0) == (shares, None, False)
    changed = replace(shares, terms=Terms(3.0, 0, 8192))
    states.changed_terms(NAME, changed)
    assert states.load(NAME, 0) == (changed, None, False)


@pytest.mark.parametrize("emulated", ["cxl", ""])
def test_emulated_delays_are_computed_from_the_same_profile_after_a_restart(
    states: StateFiles, emulated: str
) -> None:
    """On other tiers, only the profile that the plan was made from is needed."""
    made = replace(planned(4096), charged=toy_profile())
    states.entering(NAME, replace(SAVED, emulated=emulated), 7, made)
    restored = states.load(NAME, 7)
    assert restored is not None
    assert restored.planned is not None
    expected = made.charged if emulated else made.profile
    assert restored.planned.charged.accesses.tobytes() == expected.accesses.tobytes()
    assert restored.planned.profile.accesses.tobytes() == made.profile.accesses.tobytes()


def test_while_one_plan_replaces_another_both_are_kept(states: StateFiles, tmp_path: Path) -> None:
    states.attached(NAME, SAVED)
    states.entering(NAME, SAVED, 7, planned(4096))
    states.live(NAME, 7)
    states.entering(NAME, SAVED, 8, planned(8192))
    budgets = []
    for layout_id in (7, 8):
        restored = states.load(NAME, layout_id)
        assert restored is not None
        assert restored.planned is not None
        budgets.append((restored.planned.budget_bytes, restored.entered))
    assert budgets == [(4096, True), (8192, False)]
    states.live(NAME, 8)
    assert files(tmp_path) == {f"{NAME}.json", f"{NAME}.8.npz"}
    restored = states.load(NAME, 7)
    assert restored is not None
    assert restored.planned is None


def test_each_plan_is_restored_with_its_own_goal(states: StateFiles) -> None:
    more = replace(SAVED, fast="30%", policy="sentinel")
    states.attached(NAME, SAVED)
    states.entering(NAME, SAVED, 7, planned(4096))
    states.live(NAME, 7)
    states.entering(NAME, more, 8, planned(8192))
    for layout_id, saved in ((7, SAVED), (8, more)):
        restored = states.load(NAME, layout_id)
        assert restored is not None
        assert (restored.saved.fast, restored.saved.policy) == (saved.fast, saved.policy)


def test_the_rows_of_an_earlier_version_have_the_sessions_goal(
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
    restored = states.load(NAME, 7)
    assert restored is not None
    assert restored.saved.fast == SAVED.fast


def test_a_session_that_is_profiled_again_has_no_plan(states: StateFiles, tmp_path: Path) -> None:
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


def test_partial_files_of_a_full_disk_are_removed_with_the_next_write(
    states: StateFiles, tmp_path: Path
) -> None:
    states.attached(NAME, SAVED)
    (tmp_path / "sessions" / f"{NAME}.7.npz.writing").write_bytes(b"half")
    states.attached(NAME, SAVED)
    assert files(tmp_path) == {f"{NAME}.json"}


def test_the_file_of_an_earlier_version_leads_to_an_attach(
    states: StateFiles, tmp_path: Path
) -> None:
    old = {"fast": "20%", "policy": "auto", "budget_bytes": 1, "layout_id": 7, "emulated": "cxl"}
    (tmp_path / "sessions" / f"{NAME}.json").write_text(json.dumps(old))
    (tmp_path / "sessions" / f"{NAME}.npz").write_bytes(b"its plan")
    assert states.load(NAME, 7) == (replace(SAVED, nodes=()), None, False)
    states.attached(NAME, SAVED)
    assert files(tmp_path) == {f"{NAME}.json"}


NODES = ((0, 1), (2,))
OTHERS = ((0,), (1, 2))


@pytest.mark.parametrize(
    ("saved", "now", "resumable"),
    [
        (("", "", NODES), ("", "", NODES), True),
        (("cxl", "", NODES), ("cxl", "", NODES), True),
        (("cxl", "", NODES), ("", "", NODES), False),
        (("", "", NODES), ("", "", OTHERS), False),
        (("", "", NODES), ("", "", NODES[::-1]), False),
        (("", "", NODES), ("", "", ()), False),
        (("", "/paged", NODES), ("", "", NODES), False),
        (("", "", NODES), ("", "/paged", NODES), False),
        (("", "/paged", NODES), ("", "/paged", NODES), False),
    ],
)
def test_a_plan_is_resumed_only_on_the_same_tiers_and_never_on_paged_ones(
    states: StateFiles,
    saved: tuple[str, str, Nodes],
    now: tuple[str, str, Nodes],
    resumable: bool,
) -> None:
    states.attached(NAME, Saved("20%", "auto", *saved))
    restored = states.load(NAME, 0)
    assert restored is not None
    assert restored.saved.resumable(*now) == resumable


def test_a_plan_of_a_version_that_saved_no_nodes_is_not_resumed(
    states: StateFiles, tmp_path: Path
) -> None:
    states.entering(NAME, SAVED, 7, planned(4096))
    file = tmp_path / "sessions" / f"{NAME}.json"
    found = json.loads(file.read_text())
    del found["nodes"]
    file.write_text(json.dumps(found))
    restored = states.load(NAME, 7)
    assert restored is not None
    assert restored.saved.fast == SAVED.fast
    assert not restored.saved.resumable(SAVED.emulated, SAVED.paged, SAVED.nodes)


def test_files_that_cannot_be_removed_are_logged(
    states: StateFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The state files are folders here: even root can't unlink a folder, so neither forget() nor
    # StateFiles() can delete them.
    (tmp_path / "sessions" / f"{NAME}.json").mkdir()
    (tmp_path / "sessions" / "4194999-5.json").mkdir()
    states.forget(NAME)
    StateFiles(tmp_path)
    assert caplog.text.count("a session's state can't be removed") == 2


def test_another_process_with_the_same_pid_inherits_nothing(states: StateFiles) -> None:
    states.attached(NAME, SAVED)
    assert states.load(NAME + "2", 0) is None


def test_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    reused = f"{os.getpid()}-1.json"  # an earlier process had the same pid
    for name in ("4194999-5.json", "4194999-5.7.npz", "no-pid.json", reused, f"{NAME}.json"):
        (folder / name).write_text("")
    StateFiles(tmp_path)
    assert files(tmp_path) == {f"{NAME}.json"}


def test_files_are_kept_if_no_descriptor_is_free_to_look_for_their_processes(
    states: StateFiles,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states.attached(NAME, SAVED)
    with no_descriptors():
        states.prune()
    assert "can't be removed" in caplog.text
    assert files(tmp_path) == {f"{NAME}.json"}

    def exhausted(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(state, "start_time_ticks", exhausted)
    states.prune()
    assert files(tmp_path) == {f"{NAME}.json"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"plans": 3}',
        '{"fast": "20%", "plans": []}',
        '{"fast": "20%", "policy": "auto", "nodes": [0, 1]}',
        '{"fast": "20%", "policy": "auto", "terms": {"of_a_later_version": 1}}',
        '{"fast": "20%", "policy": "auto", "terms": {"weight": "2"}}',
        '{"fast": "20%", "policy": "auto", "terms": {"least_bytes": null}}',
        '{"fast": "20%", "policy": "auto", "terms": [1]}',
        "\xff",
    ],
)
def test_damaged_parameters_are_logged_and_not_used(
    states: StateFiles, tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sessions" / f"{NAME}.json").write_bytes(text.encode("latin-1"))
    with caplog.at_level(logging.WARNING):
        assert states.load(NAME, 7) is None
    assert "damaged" in caplog.text


def test_a_damaged_plan_is_logged_and_not_used(
    states: StateFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    states.attached(NAME, SAVED)
    states.entering(NAME, SAVED, 7, planned(4096))
    (tmp_path / "sessions" / f"{NAME}.7.npz").write_bytes(b"no plan")
    with caplog.at_level(logging.WARNING):
        restored = states.load(NAME, 7)
    assert restored is not None
    assert restored.planned is None
    assert "can't be read" in caplog.text


def test_failed_writes_are_logged(
    states: StateFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "sessions"
    folder.rmdir()
    folder.write_text("")
    with caplog.at_level(logging.WARNING):
        states.attached(NAME, SAVED)
        states.entering(NAME, SAVED, 7, planned(4096))
    assert "can't be written" in caplog.text
