# SPDX-License-Identifier: Apache-2.0
"""The life of a session: its states and the allowed transitions."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

EXITED = "the process exited"
"""The reason with which a session ends if its process has exited."""
CALLED_EXEC = "the process called exec"
"""The reason with which a session ends if its process has begun another program."""

NOT_READING = "the process does not read its socket"
"""The reason with which a session ends if a message can't be sent to its process."""


class State(StrEnum):
    """State of a session; docs/architecture.md has the diagram."""

    REGISTERED = "registered"  # not attached; steps are recorded only for `sentinelctl record`
    ATTACHED = "attached"  # recording begins with the next step
    WARM_UP = "warm-up"
    ALLOCATION = "allocation"  # steps are recorded until it is clear which shape a plan must fit
    ACCESS = "access"  # one step runs under page sampling and torch.profiler
    PLANNING = "planning"
    ENTERING = "entering"  # the layout was sent; the process has not taken it yet
    MANAGED = "managed"
    ENDED = "ended"


_NEXT: dict[State, frozenset[State]] = {
    State.REGISTERED: frozenset({State.ATTACHED, State.MANAGED}),
    State.ATTACHED: frozenset({State.WARM_UP}),
    State.WARM_UP: frozenset({State.ALLOCATION}),
    # ENTERING follows if the session already has a plan that fits the recorded steps.
    State.ALLOCATION: frozenset({State.ACCESS, State.ENTERING}),
    State.ACCESS: frozenset({State.PLANNING, State.ALLOCATION}),
    State.PLANNING: frozenset({State.ENTERING, State.ALLOCATION}),
    State.ENTERING: frozenset({State.MANAGED, State.ALLOCATION}),
    # ENTERING follows if another plan is made for the same steps: a corrected plan, or a plan for
    # another budget, policy or placement of tensors.
    State.MANAGED: frozenset({State.ALLOCATION, State.ENTERING}),
    State.ENDED: frozenset(),
}


class Status(NamedTuple):
    """A session's state and the reason for its last change."""

    state: State
    reason: str


class Lifecycle:
    """Holds a session's state. Only the session's thread changes the state; any thread may read it.

    `status` is replaced as a whole, so that a reader gets a state together with its own reason.
    """

    def __init__(
        self, state: State = State.REGISTERED, reason: str = "the shim said hello"
    ) -> None:
        self.status = Status(state, reason)

    @property
    def state(self) -> State:
        """The current state."""
        return self.status.state

    def can_enter(self, state: State) -> bool:
        """Whether the change to this state is allowed. REGISTERED and ENDED can follow any state
        but ENDED."""
        if self.state is State.ENDED:
            return False
        return state in (State.ENDED, State.REGISTERED) or state in _NEXT[self.state]

    def enter(self, state: State, reason: str) -> None:
        """Change the state. Raises ValueError if can_enter() is false."""
        if not self.can_enter(state):
            raise ValueError(f"a session can't go from {self.state} to {state}")
        self.status = Status(state, reason)

    def explain(self, reason: str) -> None:
        """Replace the reason; the state stays."""
        self.status = Status(self.state, reason)
