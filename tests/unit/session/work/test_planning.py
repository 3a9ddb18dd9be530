# SPDX-License-Identifier: Apache-2.0
"""A planning goal (policy and budget) as text."""

from __future__ import annotations

import pytest

from sentineld.base.units import FastBudget
from sentineld.session.work.planning import Goal


@pytest.mark.parametrize("fast", ["30%", "1048576"])
def test_a_goal_as_text(fast: str) -> None:
    assert str(Goal(FastBudget.parse(fast), "auto")) == f"policy auto, fast {fast}"
