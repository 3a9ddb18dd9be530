# SPDX-License-Identifier: Apache-2.0
"""All tests of tests/integration/test_run.py, with Debian 13's torch."""

from __future__ import annotations

from tests.integration.test_run import *  # noqa: F403

from .tree_place import place

__all__ = ["place"]
