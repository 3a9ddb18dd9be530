# SPDX-License-Identifier: Apache-2.0
"""Policies are found without a list of their modules."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from sentineld.policies import registry

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
