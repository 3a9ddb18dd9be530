# SPDX-License-Identifier: Apache-2.0
"""The common part of the backends that see writes only."""

from __future__ import annotations

import pytest

from sentineld.base.errors import SentinelError
from sentineld.observe.backend import Backend, Target
from sentineld.observe.pagemap_scan import PAGEMAP_SCAN
from sentineld.observe.softdirty import SOFT_DIRTY
from sentineld.observe.writefds import WriteFds


@pytest.mark.parametrize("backend", [PAGEMAP_SCAN, SOFT_DIRTY])
def test_a_process_without_the_right_descriptors_is_not_watched(backend: Backend) -> None:
    with pytest.raises(SentinelError, match="sent no descriptors"):
        backend.open(Target(1))
    offered = WriteFds(way="something else")
    with pytest.raises(SentinelError, match="sent descriptors for something else"):
        backend.open(Target(1, writes=offered))
