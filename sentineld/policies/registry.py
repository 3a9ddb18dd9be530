# SPDX-License-Identifier: Apache-2.0
"""Policies by name.

A policy registers itself with the register() decorator. A look-up takes the part of the policy's
name before any "+", with "_" for "-", and imports the modules of this package with this name and
all modules of a subpackage with this name. If none of them registers the policy, the look-up
imports all modules. So adding a policy takes one new file and no change to this file, and a
planning process imports few policies.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from typing import TypeVar

from sentineld.base.errors import SentinelError
from sentineld.plan.policy import Hardware, Policy, Reactive, Rewriting

_PACKAGE = __name__.rpartition(".")[0]
"""The package of this file; it holds all policies."""

_POLICIES: dict[str, Policy] = {}

AnyPolicy = TypeVar("AnyPolicy", bound=Policy)


def register(*arguments: object) -> Callable[[type[AnyPolicy]], type[AnyPolicy]]:
    """Class decorator: make an instance with these arguments and register it by its name."""

    def add(kind: type[AnyPolicy]) -> type[AnyPolicy]:
        instance = kind(*arguments)
        if instance.name in _POLICIES:
            raise ValueError(f"two policies are named {instance.name}")
        _POLICIES[instance.name] = instance
        return kind

    return add


def names() -> list[str]:
    """The names of all policies, sorted."""
    _load()
    return sorted(_POLICIES)


def managing_names() -> list[str]:
    """The names of the policies that can manage a process, sorted."""
    return [name for name in names() if manages(policy(name))]


def manages(found: Policy) -> bool:
    """Whether a policy can manage a process; if not, it runs in the simulator only."""
    return not isinstance(found, Reactive | Hardware | Rewriting)


def check_name(name: str) -> None:
    """Raise SentinelError("unknown-policy") if no policy has this name."""
    if name not in _POLICIES:
        _load(name.partition("+")[0].replace("-", "_"))
    if name not in _POLICIES:
        _load()
    if name not in _POLICIES:
        near = get_close_matches(name, _POLICIES, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"policies: {', '.join(names())}"
        raise SentinelError("unknown-policy", f"no policy is named {name!r}", hint)


def policy(name: str) -> Policy:
    """The policy with this name. Raises SentinelError("unknown-policy") if there is none."""
    check_name(name)
    return _POLICIES[name]


def managing_policy(name: str) -> Policy:
    """The policy with this name, for managing a process.

    Raises SentinelError("unknown-policy") if there is no such policy, or SentinelError("usage") if
    the policy runs in the simulator only.
    """
    found = policy(name)
    if not manages(found):
        raise SentinelError(
            "usage", f"{name} runs in the simulator only", f"sentinelctl simulate --policy {name}"
        )
    return found


@cache
def _load(part: str = "") -> None:
    """Import every module of the package and of its subpackages.

    part: if not empty, import only modules whose dotted name has this component.
    """
    package = importlib.import_module(_PACKAGE)
    for module in pkgutil.walk_packages(package.__path__, f"{_PACKAGE}."):
        if not part or part in module.name.split(".")[len(_PACKAGE.split(".")) :]:
            importlib.import_module(module.name)
