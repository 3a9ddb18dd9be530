# SPDX-License-Identifier: Apache-2.0
"""The preconditions of policies that move pages: each precondition is violated by a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentineld.base.errors import SentinelError
from sentineld.policies.require import require
from tests.unit.plan.toys import PAGE, toy_profile, two_tiers


def test_a_page_two_tiers_and_an_access_are_enough() -> None:
    profile = toy_profile()
    require(replace(profile, accesses=profile.accesses[:1]), two_tiers(1.0), PAGE)


def test_one_tier_is_refused() -> None:
    tiers = two_tiers()
    with pytest.raises(SentinelError, match="only one memory tier") as error:
        require(toy_profile(), replace(tiers, tiers=tiers.tiers[:1]), PAGE)
    assert (error.value.code, error.value.hint) == ("no-second-tier", "see sentinelctl doctor")


@pytest.mark.parametrize("bytes_per_s", [0.0, -1.0])
def test_an_unknown_bandwidth_is_refused(bytes_per_s: float) -> None:
    with pytest.raises(SentinelError, match=r"migration bandwidth .* is unknown") as error:
        require(toy_profile(), two_tiers(bytes_per_s), PAGE)
    assert (error.value.code, error.value.hint) == ("bad-config", "set tiers.migration_bytes_per_s")


@pytest.mark.parametrize(
    ("budget", "said"), [(PAGE - 1, "4.0 KiB"), (0, "only 0 B"), (-7, "only 0 B")]
)
def test_less_than_a_page_is_infeasible(budget: int, said: str) -> None:
    with pytest.raises(SentinelError, match="infeasible: only ") as error:
        require(toy_profile(), two_tiers(), budget)
    assert said in error.value.message


def test_a_profile_without_accesses_is_refused() -> None:
    profile = toy_profile()
    with pytest.raises(SentinelError, match="holds no accesses") as error:
        require(replace(profile, accesses=profile.accesses[:0]), two_tiers(), PAGE)
    assert error.value.hint == "load the kernel module or use torch.profiler"
