# SPDX-License-Identifier: Apache-2.0
"""Writes files into a made-up folder, such as one that takes the place of /sys."""

from __future__ import annotations

from pathlib import Path


def write(root: Path, path: str, text: str | bytes) -> None:
    """Write a file and make its folders. path: relative to root."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
