# SPDX-License-Identifier: Apache-2.0
"""Which plans are resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.plan.toys import PAGE
from tests.unit.toydriver import NODES, PLANNED, ToyDriver, state_files


def test_a_session_that_shares_is_resumed_with_its_terms(sharing: ToyDriver) -> None:
    shared, link = sharing.machine.shared, sharing.linked.link
    assert shared is not None
    share = shared.explain(link)
    assert share is not None
    assert share.weight == 2.0
    assert shared.budgets.held_bytes(link) == PLANNED.budget_bytes
    sharing.check_reserved(64 * PAGE)  # the whole shared budget, not the session's budget


def test_a_session_with_a_share_of_0_bytes_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ToyDriver(tmp_path, monkeypatch, shared_fast=str(64 * PAGE), fast="0")
    assert made.driver.lifecycle.state == "managed"
    made.close()


def test_a_plan_that_exceeds_a_smaller_shared_budget_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ToyDriver(tmp_path, monkeypatch, shared_fast=str(4 * PAGE))
    assert made.driver.lifecycle.state == "attached"
    assert "exceeds the shared budget's" in made.driver.lifecycle.status.reason
    assert made.driver.attachment.goal is not None
    assert made.driver.attachment.goal.fast.bytes == 4 * PAGE
    made.close()


def test_a_plan_for_other_nodes_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is attached anew, with the saved budget and policy."""
    managed = ToyDriver(tmp_path, monkeypatch, nodes=NODES[::-1])
    assert managed.driver.lifecycle.state == "attached"
    assert str(managed.driver.attachment.goal) == "policy sentinel, fast 28672"
    managed.close()


def test_a_program_does_not_inherit_the_plan_of_the_one_before_exec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = ToyDriver(tmp_path, monkeypatch, welcomed=False)
    assert managed.driver.lifecycle.state == "registered"
    assert managed.driver.attachment.goal is None
    assert state_files(tmp_path) == []
    managed.close()
