# SPDX-License-Identifier: Apache-2.0
"""The help names the keys that exist."""

from __future__ import annotations

from textual.binding import Binding

from sentineld.top.app import TopApp
from sentineld.top.lines import session_columns
from sentineld.top.words import HELP, KEYS


def bound() -> set[str]:
    keys = set()
    for binding in TopApp.BINDINGS:
        assert isinstance(binding, Binding)
        keys |= set(binding.key.split(","))
    return keys


def test_every_key_of_the_last_line_is_bound_and_helped() -> None:
    for key, _ in KEYS:
        assert {"?": "question_mark"}.get(key, key) in bound()
        assert key == "?" or any(key in term.split(", ") for term, _ in HELP[0][1]), key


def test_the_columns_that_the_help_explains_exist() -> None:
    names = {column.name for column in session_columns(80)}
    assert {term for term, _ in HELP[1][1]} <= names
