# SPDX-License-Identifier: Apache-2.0
"""docs/reference/protocol.md lists the verbs and messages of the code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "sentineld"
CONTROL, SHIM = (ROOT / "docs/reference/protocol.md").read_text().split("## Shim socket")


def listed(text: str) -> set[str]:
    """The names in the first columns of the page's tables."""
    cells = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([\w-]+)`", cell)}


def test_the_page_lists_the_verbs_of_the_control_socket() -> None:
    served = re.findall(
        r'^ +"([\w-]+)": sessions\.\w+,$', (PACKAGE / "daemon.py").read_text(), re.MULTILINE
    )
    assert listed(CONTROL) == {*served, "status"}


def test_the_page_lists_the_messages_of_the_shim_socket() -> None:
    source = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    assert listed(SHIM) == set(re.findall(r'"type": "(\w+)"', source))
