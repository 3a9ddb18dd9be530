# SPDX-License-Identifier: Apache-2.0
"""pytest setup of all tests: deactivates the shim, makes torch's threads wait without polling,
selects a hypothesis profile, and exempts the test modules' objects from garbage collection.

The header of each test run names the hypothesis profile.
"""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

import sentineld.shim

# Tests import torch and parts of the shim; importing torch must not activate the shim.
sentineld.shim.disarm()

# By default, the threads of torch's operators poll for a while when they wait for each other or for
# the next operator. While other tests run, this polling takes most of the CPU time of small
# trainings. The processes that tests start inherit the variable.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# When pytest collects the tests, it creates many objects that it keeps, but hardly any garbage.
gc.disable()

COUNTS = {"ci": 40, "long": 2000}
"""Number of examples per property in each profile; SENTINELD_HYPOTHESIS selects the profile."""

settings.register_profile(
    "ci",
    max_examples=COUNTS["ci"],
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "long",
    max_examples=COUNTS["long"],
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
PROFILE = os.environ.get("SENTINELD_HYPOTHESIS", "ci")
settings.load_profile(PROFILE)


def examples(ci: int, long: int) -> int:
    """The number of examples of an expensive property in the selected profile. With as many
    examples as in COUNTS, such properties would take most of the time of the unit tests."""
    return {"ci": ci, "long": long}[PROFILE]


def pytest_report_header(config: pytest.Config) -> str:
    return (
        f"hypothesis: profile {PROFILE}, {COUNTS[PROFILE]} examples per property "
        f"(ci {COUNTS['ci']} with a fixed seed, long {COUNTS['long']})"
    )


def pytest_collection_finish() -> None:
    # Without gc.freeze(), each full garbage collection would examine all objects of all test
    # modules and of the modules that they import. Many tests request such collections.
    gc.freeze()
    gc.enable()
