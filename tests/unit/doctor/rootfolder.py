# SPDX-License-Identifier: Apache-2.0
"""The made-up root folder for checks; see the fixtures in conftest.py."""

from __future__ import annotations

RELEASE = "6.12.117+deb13-amd64"
