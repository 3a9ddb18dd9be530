# SPDX-License-Identifier: Apache-2.0
"""The sum of the sessions' budgets, limited by the size of the fast tier or the shared budget."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes


class Budgets:
    """The budgets of all holders. A holder is, for example, a session's ShimLink. reserve() and
    grow() keep the sum of all budgets within the capacity. Thread-safe."""

    def __init__(self, capacity_bytes: int, name: str = "the fast tier") -> None:
        """name: the resource that has this capacity; used in error messages."""
        self._capacity_bytes = capacity_bytes
        self._name = name
        self._lock = threading.Lock()
        self._held: dict[Hashable, int] = {}

    def require(self, holder: Hashable, budget_bytes: int) -> None:
        """Check that the sum of this budget and all other holders' budgets does not exceed the
        capacity. Raises SentinelError."""
        with self._lock:
            self._require(holder, budget_bytes)

    def held_bytes(self, holder: Hashable) -> int:
        """The holder's budget; 0: it has none."""
        with self._lock:
            return self._held.get(holder, 0)

    def reserve(self, holder: Hashable, budget_bytes: int) -> None:
        """Raise the holder's budget to budget_bytes. A budget that is already larger stays as it
        is.

        Only settle() lowers a budget, because a plan for the larger budget may still be live.
        Raises SentinelError if the sum of all budgets would exceed the capacity.
        """
        with self._lock:
            self._require(holder, budget_bytes)
            self._held[holder] = max(self._held.get(holder, 0), budget_bytes)

    def grow(self, holder: Hashable, budget_bytes: int) -> int:
        """Raise the holder's budget to budget_bytes, or as far as the capacity permits. Returns the
        holder's budget. A budget that is already larger stays as it is."""
        with self._lock:
            held_bytes = self._held.get(holder, 0)
            free_bytes = self._capacity_bytes - sum(self._held.values())
            grown_bytes = min(budget_bytes, held_bytes + max(free_bytes, 0))
            if grown_bytes > held_bytes:
                self._held[holder] = held_bytes = grown_bytes
            return held_bytes

    def settle(self, holder: Hashable, budget_bytes: int) -> None:
        """Lower the holder's budget to budget_bytes, for example to the live plan's budget. 0
        removes it."""
        with self._lock:
            if budget_bytes:
                self._held[holder] = budget_bytes
            else:
                self._held.pop(holder, None)

    def _require(self, holder: Hashable, budget_bytes: int) -> None:
        others_bytes = sum(held for other, held in self._held.items() if other != holder)
        free_bytes = self._capacity_bytes - others_bytes
        if budget_bytes <= free_bytes:
            return
        capacity = f"{self._name}'s {format_bytes(self._capacity_bytes)}"
        if budget_bytes > self._capacity_bytes:
            problem = f"exceeds {capacity}"
        else:
            problem = (
                f"exceeds the {format_bytes(max(0, free_bytes))} that are left of {capacity}: "
                f"other sessions have budgets of {format_bytes(others_bytes)}"
            )
        raise SentinelError(
            "budget-too-large",
            f"the budget of {format_bytes(budget_bytes)} {problem}",
            "set a smaller budget, or a share such as 20%",
        )
