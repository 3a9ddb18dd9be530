# SPDX-License-Identifier: Apache-2.0
"""Managed trainings on Debian 13's torch: every test there is, those to come included."""

from __future__ import annotations

import pytest

from tests.integration.shim.test_training import *  # noqa: F403

from .tree_place import place

__all__ = ["place"]

pytestmark = pytest.mark.long
