# SPDX-License-Identifier: Apache-2.0
"""Values from processes that are not trusted, as one printable line."""

from __future__ import annotations

import pytest

from sentineld.base.text import text_of


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
