# SPDX-License-Identifier: Apache-2.0
"""A training that no policy manages is an error, not a measurement."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.training import measure as measuring
from tests.bench.training.figures import ALL_FAST


class Unmanaged:
    """In place of a ManagedTraining: the daemon never manages the training."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def manage(self) -> str:
        return "the steps differ"

    def close(self) -> None:
        pass


def test_the_reason_why_nothing_was_managed_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "ManagedTraining", Unmanaged)
    monkeypatch.setattr(measuring, "births_on", lambda cpu: 1.0)
    settings = measuring.Settings((ALL_FAST, "auto"), "cxl", rounds=2, settle=1, cpu=0)
    lines: list[str] = []
    with pytest.raises(RuntimeError, match=f"^toy under {ALL_FAST}: the steps differ$"):
        measuring.measure("toy", settings, lines.append)
    assert lines == [f"toy {ALL_FAST}: the steps differ", "toy auto: the steps differ"]
