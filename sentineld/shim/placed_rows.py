# SPDX-License-Identifier: Apache-2.0
"""The placed tensors that outlive a step, as the shim reports them to the daemon."""

from __future__ import annotations

from sentineld.shim.native import Native

ROWS_MAX = 50_000
"""Maximum number of rows, one for each placed tensor, in a message. A row takes up to 25 bytes, and
the daemon accepts messages up to 5 MiB."""

SETTLING_STEPS = 2
"""Number of steps at whose ends the rows are read after a change. One is not enough: a tensor that
is placed in the step of its birth has no row until the next step."""


class PlacedRows:
    """Reads the rows at the end of each step in which they can have changed."""

    def __init__(self, native: Native) -> None:
        self._native = native
        self._changes = -1
        self._steps_left = 0
        self.rows: list[tuple[int, int]] = []
        """(address, protocol.Placement), ascending."""

    def changed(self) -> bool:
        """Whether the rows have changed since the last call. Call this once at each step's end."""
        changes = self._native.placement_changes
        if changes != self._changes:
            self._changes, self._steps_left = changes, SETTLING_STEPS
        if not self._steps_left:
            return False
        self._steps_left -= 1
        before, self.rows = self.rows, self._native.placed(ROWS_MAX)
        return self.rows != before
