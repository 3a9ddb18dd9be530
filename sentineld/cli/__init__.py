# SPDX-License-Identifier: Apache-2.0
"""sentinelctl: one file a verb."""

from __future__ import annotations

from sentineld.cli.main import main

__all__ = ["main"]
