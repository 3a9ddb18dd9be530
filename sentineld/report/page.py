# SPDX-License-Identifier: Apache-2.0
"""Writes a report page: one HTML file that contains its figures, style and scripts.

Names in the figures come from the training process and are untrusted. The figures are a block of
JSON data. Characters with which a name could end the block are escaped (_ESCAPES). The scripts put
names into the page as text only. The page's content security policy forbids all network access,
and all scripts except those in assets/.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentineld.base.errors import SentinelError

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("values.js", "timeline.js", "map.js", "table.js", "page.js")
"""The page's own scripts, in the order in which they run."""

_ESCAPES = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}
"""Characters that are escaped in the JSON block. If they were not escaped, a name could end the
block, or begin a comment or another element."""


def page_html(data: Mapping[str, Any]) -> str:
    """The page as text. data: JSON values, from page_data()."""
    uplot = ASSETS / "uplot"
    licence = _text(uplot / "LICENSE").strip()
    style = _text(uplot / "uPlot.min.css") + _text(ASSETS / "page.css")
    own = "".join(_text(ASSETS / name) for name in SCRIPTS)
    script = (
        f"/*\n{licence}\n*/\n{_text(uplot / 'uPlot.iife.min.js')}"
        f'(() => {{\n"use strict";\n{own}}})();\n'
    )
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)};"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "title": html.escape(str(data["title"])),
        "policy": policy,
        "style": style,
        "data": json_block(data),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _text(ASSETS / "page.html"))


def json_block(data: Mapping[str, Any]) -> str:
    """JSON text for a <script> element that contains data, not a script; see _ESCAPES."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return re.sub("[<>&\u2028\u2029]", lambda found: _ESCAPES[found[0]], text)


def write_page(data: Mapping[str, Any], path: Path) -> None:
    """Write the page; an existing file is replaced. Raises SentinelError."""
    try:
        # A file's name, and so the title, can contain surrogates, which UTF-8 cannot encode.
        path.write_bytes(page_html(data).encode("utf-8", "replace"))
    except OSError as error:
        raise SentinelError(
            "failed", f"can't write {path}: {error.strerror or error}", "name another file"
        ) from None


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The source expression of a content security policy that allows this inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
