# SPDX-License-Identifier: Apache-2.0
"""No page backend: the framework's own word, tensor by tensor, is all there is.

The shim's operator accesses (sentineld.shim.opaccess) come with every session,
whatever backend runs beside them; this one adds nothing to them.
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
    """Sees no page."""

    def __init__(self, _: Target) -> None:
        """Nothing is opened."""

    def begin(self, ranges: Ranges) -> None:
        """Nothing begins."""

    def poll(self) -> None:
        """Nothing to look at."""

    def end(self) -> Areas:
        """No areas."""
        return np.zeros(0, AREA_DTYPE)

    def close(self) -> None:
        """Nothing was opened."""


SHIM_ONLY = Backend(
    name="shim",
    capabilities=Capabilities(
        reads=True,
        writes=True,
        tells_writes=True,
        births=True,
        nodes=False,
        frequency=False,
        exact=False,
        epochs=True,
        resolution=Resolution.TENSOR,
        needs="a torch whose profiler tells the operators' tensors",
    ),
    probe=lambda: None,
    open=NoWatch,
)
