# SPDX-License-Identifier: Apache-2.0
"""The life of a session as states and the moves allowed between them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where a session is; docs/architecture.md draws it."""

    REGISTERED = "registered"  # the shim said hello; nothing is recorded
    ATTACHED = "attached"  # recording was asked for and begins with the next step
    WARM_UP = "warm-up"
    ALLOCATION = "allocation"  # until two steps allocate identically
    ACCESS = "access"  # one step under page sampling and torch.profiler
    PLANNING = "planning"
    ENTERING = "entering"  # the layout is on its way into the process
    MANAGED = "managed"
    ENDED = "ended"


_NEXT: dict[State, frozenset[State]] = {
    State.REGISTERED: frozenset({State.ATTACHED, State.MANAGED}),
    State.ATTACHED: frozenset({State.WARM_UP}),
    State.WARM_UP: frozenset({State.ALLOCATION}),
    # ENTERING: there is a plan for this shape.
    State.ALLOCATION: frozenset({State.ACCESS, State.ENTERING}),
    State.ACCESS: frozenset({State.PLANNING, State.ALLOCATION}),
    State.PLANNING: frozenset({State.ENTERING, State.ALLOCATION}),
    State.ENTERING: frozenset({State.MANAGED, State.ALLOCATION}),
    # ENTERING: another plan for the same steps, corrected or of another budget or policy.
    State.MANAGED: frozenset({State.ALLOCATION, State.ENTERING}),
    State.ENDED: frozenset(),
}


@dataclass
class Lifecycle:
    """The current state and why the last change happened."""

    state: State = State.REGISTERED
    reason: str = "the process said hello"

    def can_enter(self, state: State) -> bool:
        """Whether the state may follow the current one. Every state may end or be detached."""
        if self.state is State.ENDED:
            return False
        return state in (State.ENDED, State.REGISTERED) or state in _NEXT[self.state]

    def enter(self, state: State, reason: str) -> None:
        """Change the state. Raises ValueError if can_enter() says no."""
        if not self.can_enter(state):
            raise ValueError(f"a session can't go from {self.state} to {state}")
        self.state, self.reason = state, reason
