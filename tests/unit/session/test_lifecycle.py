# SPDX-License-Identifier: Apache-2.0
"""A session passes through its states in a fixed order. It can end in any state, and no state
follows the end."""

from __future__ import annotations

import pytest

from sentineld.session.lifecycle import Lifecycle, State

WAY = [
    State.ATTACHED,
    State.WARM_UP,
    State.ALLOCATION,
    State.ACCESS,
    State.PLANNING,
    State.ENTERING,
    State.MANAGED,
]


def test_the_way_of_a_session() -> None:
    life = Lifecycle()
    for state in WAY:
        life.enter(state, f"because of {state}")
        assert life.status == (state, f"because of {state}")
    life.enter(State.ALLOCATION, "three steps diverged")
    assert life.status.reason == "three steps diverged"


def test_a_reason_is_replaced_without_a_change_of_state() -> None:
    life = Lifecycle()
    before = life.status
    life.explain("another reason")
    assert life.status == (State.REGISTERED, "another reason")
    assert before.reason != "another reason"


def test_a_managed_session_enters_a_corrected_plan() -> None:
    life = Lifecycle()
    for state in [*WAY, State.ENTERING, State.MANAGED, State.ENTERING]:
        life.enter(state, "")
    assert life.can_enter(State.ALLOCATION)


@pytest.mark.parametrize("index", range(len(WAY) - 1))
def test_no_state_is_skipped(index: int) -> None:
    life = Lifecycle()
    for state in WAY[: index + 1]:
        life.enter(state, "")
    # After the allocation steps, a session can directly enter a plan that it had before.
    shortcut = State.ENTERING if WAY[index] is State.ALLOCATION else None
    for later in WAY[index + 2 :]:
        if later is shortcut:
            assert life.can_enter(later)
            continue
        assert not life.can_enter(later)
        with pytest.raises(ValueError, match="can't go"):
            life.enter(later, "")


@pytest.mark.parametrize("count", range(len(WAY) + 1))
def test_every_state_can_be_left(count: int) -> None:
    life = Lifecycle()
    for state in WAY[:count]:
        life.enter(state, "")
    assert life.can_enter(State.REGISTERED)
    life.enter(State.ENDED, "the process exited")
    assert not any(life.can_enter(state) for state in State)
