# SPDX-License-Identifier: Apache-2.0
"""Writes files into a made-up root folder for checks."""

from __future__ import annotations

from pathlib import Path

RELEASE = "6.12.117+deb13-amd64"


def write(root: Path, path: str, text: str | bytes) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
