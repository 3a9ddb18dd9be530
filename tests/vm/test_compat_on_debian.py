# SPDX-License-Identifier: Apache-2.0
"""The kinds of training on Debian 13's torch: all tests of test_compat.py."""

from __future__ import annotations

from tests.integration.shim.test_compat import *  # noqa: F403

from .tree_place import place

__all__ = ["place"]
