# SPDX-License-Identifier: Apache-2.0
"""Reads the panels and the expressions of a Grafana dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels, including those of collapsed rows."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels") or []


def expressions(board: dict[str, Any]) -> list[str]:
    """The expressions of all panels."""
    return [target["expr"] for panel in panels(board) for target in panel.get("targets") or []]
