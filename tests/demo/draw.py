# SPDX-License-Identifier: Apache-2.0
"""Draws a report, if matplotlib is installed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def draw(module: str, result: dict[str, Any], path: Path) -> None:
    """Call the module's draw(). If matplotlib is missing, print a message instead."""
    try:
        picture = import_module(module)
    except ImportError as error:
        print(f"demo: no picture: {error} (make demo installs it)", file=sys.stderr)
        return
    picture.draw(result, path)
