# SPDX-License-Identifier: Apache-2.0
"""Policies are found without a list of their modules."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.plan.policy import Hardware, Reactive, Rewriting
from sentineld.policies import registry
from sentineld.policies.registry import (
    check_name,
    managing_names,
    managing_policy,
    names,
    policy,
)
from tests.unit.plan.toys import PAGE, large_profile, two_tiers

MODULE = """
from {registry} import register


@register()
class Added:
    name = "added"
    charges_budget = False
"""


def test_a_new_policy_takes_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = importlib.import_module(registry.__name__.rpartition(".")[0])
    known = registry.names()
    (tmp_path / "added_policy.py").write_text(MODULE.format(registry=registry.__name__))
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "_POLICIES", dict(registry._POLICIES))
    registry._load.cache_clear()
    try:
        assert registry.names() == sorted([*known, "added"])
    finally:
        sys.modules.pop(f"{package.__name__}.added_policy", None)
        registry._load.cache_clear()


def test_policies_are_found_by_name_and_typos_get_a_hint() -> None:
    assert set(names()) >= {"fast-only", "first-touch", "sentinel", "slow-only"}
    assert names() == sorted(names())
    check_name("sentinel")
    with pytest.raises(SentinelError, match="'sentinl'") as error:
        policy("sentinl")
    assert error.value.code == "unknown-policy"
    assert error.value.hint.startswith("did you mean sentinel")


LOOK_UP = """
import sys
from sentineld.policies.registry import policy
package = "sentineld.policies"
policy(sys.argv[1])
print(*(name for name in sys.modules if name.startswith(package) and "rivals." in name))
"""


@pytest.mark.parametrize(
    ("name", "modules"),
    [("auto", set()), ("g10+slow", {"g10"}), ("memory-mode", {"memory_mode"})],
)
def test_a_look_up_imports_no_policies_of_other_names(name: str, modules: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK_UP, name], capture_output=True, text=True, check=True
    )
    found = {module.rpartition(".")[2] for module in done.stdout.split()}
    assert found >= modules
    assert "swapadvisor" not in found


def test_simulator_only_policies_cannot_manage_a_process() -> None:
    managing = []
    for name in names():
        if isinstance(policy(name), Reactive | Hardware | Rewriting):
            with pytest.raises(SentinelError, match="simulator only"):
                managing_policy(name)
        else:
            assert managing_policy(name).name == name
            managing.append(name)
    assert managing_names() == managing
    assert "auto" in managing
    assert "auto+recompute" not in managing


def test_a_name_is_taken_once() -> None:
    class Again:
        name = "sentinel"
        charges_budget = True

    before = policy("sentinel")
    with pytest.raises(ValueError, match="two policies are named sentinel"):
        registry.register()(Again)  # type: ignore[type-var]
    assert policy("sentinel") is before


def test_a_name_without_a_similar_one_lists_all() -> None:
    with pytest.raises(SentinelError, match="no policy is named 'zzz'") as error:
        policy("zzz")
    assert error.value.hint == f"policies: {', '.join(names())}"


@pytest.mark.parametrize("name", [one for one in names() if policy(one).charges_budget])
def test_a_negative_budget_is_infeasible(name: str) -> None:
    with pytest.raises(SentinelError, match="infeasible") as error:
        policy(name).plan(large_profile(), two_tiers(), -PAGE)
    assert error.value.code == "failed"
