# SPDX-License-Identifier: Apache-2.0
"""A report page is one file. Names in a trace cannot add elements or scripts to it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sentineld.base.errors import SentinelError
from sentineld.report.page import json_block, page_html, write_page

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]> & \" ' ` \\ \u2028 \u2029 \x00 {{data}}",
    "x" * 2048,
)


class Elements(HTMLParser):
    """Collects elements, attributes and the texts of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open = ""
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": [], "title": []}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.open = tag
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self.open = ""

    def handle_data(self, data: str) -> None:
        if self.open in self.texts:
            self.texts[self.open][-1] += data


def data(name: str) -> dict[str, Any]:
    return {"title": name, "names": [name], "kinds": [["parameter", "#4e79a7"]]}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_a_value(name: str) -> None:
    found, harmless = Elements(page_html(data(name))), Elements(page_html(data("name")))
    assert found.tags == harmless.tags
    block, script = found.texts["script"]
    assert json.loads(block)["names"] == [name]
    assert script == harmless.texts["script"][1]


def test_the_block_has_no_character_that_html_or_javascript_treats_specially() -> None:
    assert not re.search("[<>&\u2028\u2029]", json_block({"names": list(HOSTILE)}))


def test_the_page_loads_nothing() -> None:
    found = Elements(page_html(data("name")))
    names = {name for name, _ in found.attributes}
    assert not names & {"src", "srcset", "action", "data-src", "onclick", "style"}
    assert [value for name, value in found.attributes if name == "href"] == ["data:,"]
    assert "@import" not in found.texts["style"][0]
    assert "url(" not in found.texts["style"][0]


def test_the_policy_allows_only_the_pages_own_script_and_style() -> None:
    found = Elements(page_html(data("name")))
    policy = next(
        value or "" for name, value in found.attributes if name == "content" and "src" in str(value)
    )
    assert policy.startswith("default-src 'none';")
    for text in (found.texts["script"][1], found.texts["style"][0]):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_the_library_comes_with_its_licence() -> None:
    script = Elements(page_html(data("name"))).texts["script"][1]
    assert "The MIT License" in script
    assert "Copyright (c) 2022 Leon Sorokin" in script


def test_a_title_that_utf8_cannot_encode_is_written(tmp_path: Path) -> None:
    path = tmp_path / "it.html"
    write_page(data("trace \udcff.npz"), path)
    assert "<title>trace ?.npz</title>" in path.read_text()
    with pytest.raises(SentinelError, match="can't write"):
        write_page(data("name"), tmp_path / "none" / "it.html")
