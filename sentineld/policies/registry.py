# SPDX-License-Identifier: Apache-2.0
"""Policies by name. A policy registers itself; the modules that hold them are listed below."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from difflib import get_close_matches
from typing import TypeVar

from sentineld.base.errors import SentinelError
from sentineld.plan.policy import Hardware, Policy, Reactive

_MODULES = (
    "sentineld.policies.sentinel.policy",
    "sentineld.policies.auto.policy",
    "sentineld.policies.baselines",
    "sentineld.policies.rivals.interleave",
    "sentineld.policies.rivals.static",
    "sentineld.policies.rivals.memory_mode",
    "sentineld.policies.rivals.ial",
    "sentineld.policies.rivals.tpp",
    "sentineld.policies.rivals.memtis",
    "sentineld.policies.rivals.g10",
    "sentineld.policies.rivals.capuchin",
    "sentineld.policies.rivals.autotm",
)
_POLICIES: dict[str, Policy] = {}

AnyPolicy = TypeVar("AnyPolicy", bound=Policy)


def register(*arguments: object) -> Callable[[type[AnyPolicy]], type[AnyPolicy]]:
    """Class decorator: makes an instance with these arguments known by its name."""

    def add(kind: type[AnyPolicy]) -> type[AnyPolicy]:
        instance = kind(*arguments)
        if instance.name in _POLICIES:
            raise ValueError(f"two policies are named {instance.name}")
        _POLICIES[instance.name] = instance
        return kind

    return add


def names() -> list[str]:
    """All policies' names, sorted."""
    _load()
    return sorted(_POLICIES)


def check_name(name: str) -> None:
    """Raise SentinelError("unknown-policy") if there is no such policy."""
    _load()
    if name not in _POLICIES:
        near = get_close_matches(name, _POLICIES, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names())}"
        raise SentinelError("unknown-policy", f"no policy is named {name!r}", hint)


def policy(name: str) -> Policy:
    """The policy of that name. Raises SentinelError("unknown-policy")."""
    check_name(name)
    return _POLICIES[name]


def managing_policy(name: str) -> Policy:
    """The same, for managing a process. Raises SentinelError("usage") for those that the simulator
    alone carries out."""
    found = policy(name)
    if isinstance(found, Reactive | Hardware):
        raise SentinelError(
            "usage", f"{name} runs in the simulator only", f"sentinelctl simulate --policy {name}"
        )
    return found


def _load() -> None:
    for module in _MODULES:
        importlib.import_module(module)
