# SPDX-License-Identifier: Apache-2.0
"""Features of the machine without which tests are skipped."""

from __future__ import annotations

import os

VARIABLE = "SENTINELD_REQUIRE"
"""The environment variable that lists features that this machine must have, separated by commas."""
FEATURES = ("cgroup", "pager", "swap")


def unless_required(feature: str, problem: str) -> str:
    """Returns `problem`, the reason to skip the tests that need the feature.

    Raises AssertionError if VARIABLE lists the feature: then the tests must not be skipped.
    """
    required = [name for name in os.environ.get(VARIABLE, "").split(",") if name]
    assert set(required) <= set(FEATURES), f"{VARIABLE}={','.join(required)}: not in {FEATURES}"
    assert feature not in required, f"{VARIABLE} lists {feature}, but: {problem}"
    return problem
