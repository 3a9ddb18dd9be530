# SPDX-License-Identifier: Apache-2.0
"""The constants that documentation pages quote have the same values as in the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.generate import ROOT, written_pages
from docs.values import FORMATS, SOURCES, names_in, value_of, with_values

PAGES = list(written_pages())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_quoted_constants_are_up_to_date(page: Path) -> None:
    text = page.read_text()
    assert names_in(text) <= set(SOURCES)
    assert with_values(text) == text, "run `make docs`"


@pytest.mark.parametrize("name", SOURCES)
def test_the_constant_exists_and_a_page_quotes_it(name: str) -> None:
    value_of(name)
    assert any(name in names_in(page.read_text()) for page in PAGES)


def test_an_outdated_value_is_replaced() -> None:
    begin, end = "<!-- value: plan.move_share as percent -->", "<!-- /value -->"
    expected = FORMATS["percent"](value_of("plan.move_share"))
    assert with_values(f"at most {begin}12 %{end} of it") == f"at most {begin}{expected}{end} of it"


@pytest.mark.parametrize(
    ("marker", "error"),
    [
        ("<!-- value: no.such as number -->1<!-- /value -->", KeyError),
        ("<!-- value: plan.move_share as furlongs -->1<!-- /value -->", KeyError),
        ("<!-- value: plan.move_share -->1<!-- /value -->", ValueError),
        ("<!-- value: plan.move_share as percent -->1", ValueError),
    ],
)
def test_a_marker_that_means_nothing_is_an_error(marker: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        with_values(marker)


def test_a_file_without_the_constant_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "gone", ("sentineld/shim/native/emulate.c", "NO_SUCH_CONSTANT"))
    with pytest.raises(ValueError, match="defines no NO_SUCH_CONSTANT"):
        value_of("gone")


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
