# SPDX-License-Identifier: Apache-2.0
"""Attaches, their terms, and the end of a session.

tests/integration/test_emulated.py drives trainings through all states.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.observe import module
from sentineld.observe.pidfd import start_time_ticks
from sentineld.plan.division import Terms
from sentineld.session.lifecycle import CALLED_EXEC, State
from sentineld.session.work.profiling import Profiling
from tests.unit.plan.toys import PAGE
from tests.unit.session.intake.test_sampling import Log
from tests.unit.toydriver import ToyDriver, state_files

MORE = FastBudget.parse("512M")


def test_terms_change_without_planning(sharing: ToyDriver) -> None:
    driver = sharing.driver
    assert driver.attach(None, None, {"most_bytes": 7 * PAGE}) is None
    assert driver.attachment.goal is not None
    assert driver.attachment.goal.terms == Terms(2.0, 0, 7 * PAGE)
    with pytest.raises(SentinelError, match="exceeds the maximum"):
        driver.attach(None, None, {"least_bytes": 8 * PAGE})
    assert driver.attachment.goal.terms == Terms(2.0, 0, 7 * PAGE)
    with pytest.raises(SentinelError, match="shares the shared budget"):
        driver.attach(MORE, None)
    driver.turn()
    assert driver.attach(None, "static") is not None


def test_a_switch_that_is_refused_changes_no_terms(sharing: ToyDriver) -> None:
    driver = sharing.driver
    driver.turn()
    with pytest.raises(SentinelError, match="is being replanned"):
        driver.attach(None, "static", {"weight": 3.0})
    assert driver.attachment.goal is not None
    assert driver.attachment.goal.terms == Terms(2.0)


def test_the_module_is_detached_when_a_request_ends(
    managed: ToyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    monkeypatch.setattr(module, "PageSampler", lambda: log)
    recording = managed.driver.record(1)
    managed.driver.observing.exact_sampling()  # as the recording does after the first steps
    assert log.periods == [0]
    managed.driver.cancel(recording)
    assert managed.driver.lifecycle.state == "managed"
    assert log.periods == [0]  # the next request can use it: no step has begun
    recording = managed.driver.record(1)
    managed.linked.set(step=11, position=11 << 32)
    managed.driver.cancel(recording)
    assert log.periods == [0, "closed"]


def test_a_refused_request_leaves_the_sampling_of_the_current_one(
    managed: ToyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    monkeypatch.setattr(module, "PageSampler", lambda: log)
    managed.driver.record(1)
    managed.driver.observing.exact_sampling()
    for refused in (managed.driver.meter, managed.driver.record):
        with pytest.raises(SentinelError, match="is being recorded"):
            refused(1)
    assert log.periods == [0]


@pytest.mark.parametrize("attached", [False, True])
def test_a_recording_that_cannot_begin_changes_nothing(
    managed: ToyDriver, monkeypatch: pytest.MonkeyPatch, attached: bool
) -> None:
    def fails(pid: int) -> None:
        raise OSError("no memory")

    driver, link = managed.driver, managed.linked.link
    if not attached:
        driver.detach()
    monkeypatch.setattr(managed.machine.probing, "record", fails)
    with pytest.raises(OSError, match="no memory"):
        driver.record(1)
    assert bool(managed.machine.tree(link.pid)) == attached


def test_a_switch_during_an_abandoned_planning_changes_no_terms(sharing: ToyDriver) -> None:
    driver = sharing.driver
    replanning = driver.attach(None, "static")
    assert replanning is not None
    driver.cancel(replanning)
    with pytest.raises(SentinelError, match="for an earlier request"):
        driver.attach(None, "static", {"weight": 3.0})
    assert driver.attachment.goal is not None
    assert driver.attachment.goal.terms == Terms(2.0)


def test_terms_need_a_shared_budget(managed: ToyDriver) -> None:
    with pytest.raises(SentinelError, match="has a budget of its own"):
        managed.driver.attach(None, None, {"weight": 2.0})
    managed.driver.detach()
    with pytest.raises(SentinelError, match="has no shared budget"):
        managed.driver.attach(None, None, {"weight": 2.0})
    with pytest.raises(SentinelError, match="has no weight"):
        managed.driver.attach(MORE, None, {"weight": 2.0})


def test_a_detach_after_an_error_forgets_the_session(managed: ToyDriver, tmp_path: Path) -> None:
    """Until then, the next daemon would attach the process again."""
    driver = managed.driver
    driver.unmanage("an error")
    assert len(state_files(tmp_path)) == 2
    driver.detach()
    assert driver.lifecycle.status == (State.REGISTERED, "detached")
    assert state_files(tmp_path) == []
    with pytest.raises(SentinelError, match="is not attached"):
        driver.detach()


@pytest.mark.parametrize(
    ("reason", "kept"), [(CALLED_EXEC, False), ("the process closed its connection", True)]
)
def test_exec_ends_a_session_for_good(
    managed: ToyDriver, tmp_path: Path, reason: str, kept: bool
) -> None:
    assert len(state_files(tmp_path)) == 2
    managed.driver.end(reason)
    assert bool(state_files(tmp_path)) == kept


def test_files_that_were_kept_for_an_exiting_process_are_removed_later(
    managed: ToyDriver, tmp_path: Path
) -> None:
    """An exit closes the connection first, so a session may end before its process is gone."""
    kept = state_files(tmp_path)
    other = subprocess.Popen(["sleep", "1000"])
    name = f"{other.pid}-{start_time_ticks(other.pid)}"
    for file in (f"{name}.json", f"{name}.7.npz"):
        (tmp_path / "sessions" / file).write_text("")
    other.kill()
    other.wait()
    managed.driver.end("the process closed its connection")
    assert state_files(tmp_path) == kept


def test_a_turn_checks_whether_steps_still_end_while_pages_are_sampled(
    managed: ToyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Profiling] = []
    monkeypatch.setattr(Profiling, "check_idle", lambda profiling: checked.append(profiling))
    managed.diverge()
    managed.driver.turn()
    assert managed.driver.lifecycle.state is State.ALLOCATION
    assert not checked
    managed.driver.lifecycle.enter(State.ACCESS, "")
    managed.driver.turn()
    assert len(checked) == 1


def test_a_reloaded_barrier_timeout_holds_from_the_next_attach_on(managed: ToyDriver) -> None:
    def timeout_ns() -> int:
        return managed.linked.link.segment.barrier_timeout_ns()

    managed.driver.set_barrier_timeout()
    managed.machine.configure(replace(managed.machine.config, barrier_timeout_ms=7))
    assert timeout_ns() == 2_000_000_000
    managed.driver.detach()
    assert managed.driver.attach(None, None) is None
    assert timeout_ns() == 7_000_000
