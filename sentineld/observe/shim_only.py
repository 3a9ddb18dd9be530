# SPDX-License-Identifier: Apache-2.0
"""The fallback backend, which observes no pages: only the framework reports accesses, by tensor.

Every session has the operators' accesses that the shim reports (sentineld.shim.op_accesses). The
other backends complete or check them with observed pages; this backend does neither.
"""

from __future__ import annotations

import numpy as np

from sentineld.observe.backend import (
    AREA_DTYPE,
    Areas,
    Backend,
    Capabilities,
    Ranges,
    Resolution,
    Target,
)


class NoWatch:
    """A watch that observes no pages."""

    def __init__(self, _: Target) -> None:
        """Open nothing."""

    def begin(self, ranges: Ranges) -> None:
        """Do nothing."""

    def poll(self) -> None:
        """Do nothing."""

    def end(self) -> Areas:
        """Return no areas."""
        return np.zeros(0, AREA_DTYPE)

    def close(self) -> None:
        """Do nothing."""


SHIM_ONLY = Backend(
    name="shim",
    capabilities=Capabilities(
        reads=True,
        writes=True,
        distinguishes_writes=True,
        births=True,
        nodes=False,
        frequency=False,
        exact=False,
        epochs=True,
        resolution=Resolution.TENSOR,
    ),
    probe=lambda: None,
    open=NoWatch,
)
