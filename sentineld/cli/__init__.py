# SPDX-License-Identifier: Apache-2.0
"""sentinelctl: each module implements one verb or a few related ones."""

from __future__ import annotations

from sentineld.cli.main import main

__all__ = ["main"]
