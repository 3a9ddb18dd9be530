# SPDX-License-Identifier: Apache-2.0
"""Parsing and formatting of human-readable sizes and budgets."""

from __future__ import annotations

import pytest

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [("4096", 4096), ("48MiB", 48 << 20), ("1.5 G", 3 << 29), ("2k", 2048), ("7B", 7)],
)
def test_sizes_are_parsed(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1", "1e9", "4 parsecs", "1.2.3", "8388608T", "9" * 400]
)
def test_invalid_sizes_are_usage_errors(text: str) -> None:
    with pytest.raises(SentinelError) as caught:
        parse_bytes(text)
    assert caught.value.exit_status == 2


def test_budgets_are_bytes_or_a_share_of_the_peak() -> None:
    assert FastBudget.parse("20%").resolve(1000) == 200
    assert FastBudget.parse("1MiB").resolve(10) == 1 << 20
    assert str(FastBudget.parse("12.5%")) == "12.5%"


@pytest.mark.parametrize("text", ["0%", "101%", "%", "nan%", "0"])
def test_invalid_budgets_are_refused(text: str) -> None:
    with pytest.raises(SentinelError):
        FastBudget.parse(text)


def test_sizes_are_formatted_with_binary_units() -> None:
    assert [format_bytes(n) for n in (5, 2048, 3 << 20)] == ["5 B", "2.0 KiB", "3.0 MiB"]
