# SPDX-License-Identifier: Apache-2.0
"""Policy `deepum`: learn which blocks each execution uses, and prefetch for the next N executions.

Based on DeepUM (ASPLOS 2023), which trains on GPUs with unified memory. No artifact is public; the
rules come from third parties' notes. An execution is a kernel launch, here a stretch. A table of
executions predicts the next execution from the current one and the three before it. A table of
blocks holds the blocks that each execution used. The prefetcher follows both tables N executions
ahead, and stops at the first execution that it cannot predict. Blocks that are not predicted for
the next N executions are evicted before the room is needed, the least recently migrated ones first.
Blocks of freed tensors are dropped without a copy: here at the tensor's death, in the original when
they are evicted. Published N: 8, according to a model of DeepUM in G10's artifact.

In the original, an access to a slow page waits until the page has been fetched. In the simulator,
only accesses on paged tiers wait. On other tiers, a page whose prefetch is late is accessed in slow
memory. Blocks are the simulator's cells. Left out: the limited sizes of the tables, and the time of
the page fault that starts a chain of prefetches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sentineld.model.profile import Profile
from sentineld.plan.policy import Reactor
from sentineld.policies.registry import register
from sentineld.policies.rivals.prefetching import Prefetcher
from sentineld.policies.rivals.reactive import FirstTouchPolicy

AHEAD = (8, 1, 2, 4, 16, 32)
"""Numbers of executions for which blocks are prefetched. The published one comes first."""

HISTORY = 4
"""Number of executions from which the next one is predicted: the current one and the three before
it."""


@register()
class DeepUm(FirstTouchPolicy):
    """Policy `deepum`; see the module's docstring."""

    name = "deepum"
    drops = True

    def reactors(self, profile: Profile) -> Sequence[tuple[str, Reactor]]:
        """A prefetcher for each value of AHEAD; see Reactive."""
        return [(f"{ahead} executions ahead", Learner(ahead)) for ahead in AHEAD]


class Executions:
    """The table of executions: the execution that followed each sequence of HISTORY executions."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}
        self._last: deque[int] = deque(maxlen=HISTORY)

    def note(self, execution: int) -> None:
        """Record that this execution followed the last HISTORY executions."""
        if len(self._last) == HISTORY:
            self._next[tuple(self._last)] = execution
        self._last.append(execution)

    def predict(self, count: int) -> list[int]:
        """The next executions, at most `count`; the list ends where the table has no prediction."""
        last, found = self._last.copy(), list[int]()
        while len(found) < count and (following := self._next.get(tuple(last))) is not None:
            found.append(following)
            last.append(following)
        return found


class Learner(Prefetcher):
    """A prefetcher that learns the order of executions."""

    def __init__(self, ahead: int) -> None:
        """ahead: see AHEAD."""
        super().__init__(ahead, Executions())
