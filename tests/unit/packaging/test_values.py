# SPDX-License-Identifier: Apache-2.0
"""Constants that pages quote are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.generate import ROOT, written_pages
from docs.values import FORMATS, SOURCES, names_in, value_of, with_values


@pytest.mark.parametrize("page", written_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_quoted_constants_are_up_to_date(page: Path) -> None:
    text = page.read_text()
    assert names_in(text) <= set(SOURCES)
    assert with_values(text) == text, "run `make docs`"
    assert text.count("<!-- value: ") == text.count("<!-- /value -->")
    assert text.count("<!-- value: ") == len(
        [at for at in range(len(text)) if text.startswith("<!-- value: ", at)]
    )


@pytest.mark.parametrize("name", SOURCES)
def test_the_constant_exists_and_a_page_quotes_it(name: str) -> None:
    value_of(name)
    assert any(name in names_in(page.read_text()) for page in written_pages())


def test_an_outdated_value_is_replaced() -> None:
    begin, end = "<!-- value: auto.move_share as percent -->", "<!-- /value -->"
    expected = FORMATS["percent"](value_of("auto.move_share"))
    assert with_values(f"at most {begin}12 %{end} of it") == f"at most {begin}{expected}{end} of it"


def test_formats() -> None:
    written = {
        ("number", 120_000): "120,000",
        ("number", 1.06): "1.06",
        ("percent", 0.002): "0.2 %",
        ("remaining-percent", 0.25): "75 %",
        ("percents", (0.75, 0.5)): "75 %, 50 %",
        ("ratio", 1 / 128): "1/128",
        ("bytes", 64 << 10): "64 KiB",
        ("pages-as-bytes", 16): "64 KiB",
        ("GB/s", 105e9): "105",
        ("seconds", 100.0): "100 s",
        ("ns-as-ms", 100_000): "0.1 ms",
        ("ns-as-seconds", 2_000_000_000): "2 s",
        ("count", (1, 2, 3)): "3",
    }
    assert {key: FORMATS[key[0]](key[1]) for key in written} == written
    assert {name for name, _ in written} == set(FORMATS)
