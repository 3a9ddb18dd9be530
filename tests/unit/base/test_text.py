# SPDX-License-Identifier: Apache-2.0
"""Values from untrusted processes become one printable line, and long texts are cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.base.text import json_end, printable, text_of


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("a\nb\x1b[31m\ud800c", "a?b?[31m?c"),
        ("x" * 99, "x" * 20),
        (["a"], "(list)"),
        ({}, "(dict)"),
        (None, "None"),
        (10**30, "1" + "0" * 19),
    ],
)
def test_what_a_peer_says_is_one_short_line(value: object, line: str) -> None:
    assert text_of(value, 20) == line


@given(st.text(st.characters()))
def test_printable_text_stays_and_other_characters_become_question_marks(text: str) -> None:
    found = printable(text)
    assert found.isprintable()
    assert len(found) == len(text)
    for before, after in zip(text, found, strict=True):
        assert after == (before if before.isprintable() else "?")


@given(st.text() | st.binary() | st.lists(st.text()) | st.none(), st.integers(0, 30))
def test_any_value_becomes_a_printable_line_of_limited_length(
    value: object, characters_max: int
) -> None:
    line = text_of(value, max(characters_max, len("(list)")))
    assert line.isprintable()
    assert len(line) <= max(characters_max, len("(list)"))


@given(st.text(), st.integers(0, 20))
def test_the_end_of_a_text_in_json(text: str, bytes_max: int) -> None:
    found = json_end(text, bytes_max)
    assert text.endswith(found)
    assert len(json.dumps(found)) - 2 <= bytes_max
    longer = text[len(text) - len(found) - 1 :]
    assert found == text or len(json.dumps(longer)) - 2 > bytes_max


def test_nesting_of_any_depth_is_not_followed() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    assert text_of(nested, 20) == "(list)"
