# SPDX-License-Identifier: Apache-2.0
"""A control server to connect to."""

from __future__ import annotations

from tests.unit.control.conftest import server

__all__ = ["server"]
