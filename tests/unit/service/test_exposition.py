# SPDX-License-Identifier: Apache-2.0
"""The text of the metrics, compared with that of prometheus_client, and read by its parser."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from sentineld.service.exposition import Family, exposition, exposition_app

TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r"), max_size=9)
"""Without surrogates, because prometheus_client raises an error for them."""


def prepared(help_text: str = "A text.", label: str = "a", value: float = 1.5) -> list[Family]:
    """A counter and two gauges with given values."""
    rows = [((label, "b"), value), (("", label), 7)]
    return [
        Family("moved_bytes_total", "counter", help_text, ("two", "one"), rows),
        Family("steps", "gauge", help_text, (), [((), value)]),
        Family("shares", "gauge", help_text, ("one",), []),
    ]


class AsClient(Collector):
    """Passes metrics to prometheus_client, whose text is compared with that of exposition()."""

    def __init__(self, prepared: Sequence[Family]) -> None:
        self._prepared = prepared

    def collect(self) -> Iterator[Metric]:
        for name, kind, help_text, labels, rows in self._prepared:
            made = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            family = made(name, help_text, labels=labels)
            for values, value in rows:
                family.add_metric(values, value)
            yield family


def written_by_client(prepared: Sequence[Family]) -> bytes:
    registry = CollectorRegistry()
    registry.register(AsClient(prepared))
    return generate_latest(registry)


def families(text: bytes) -> list[tuple[Any, ...]]:
    return [
        (one.name, one.type, one.documentation, [(s.name, s.labels, s.value) for s in one.samples])
        for one in text_string_to_metric_families(text.decode())
    ]


@given(TEXTS, TEXTS, st.floats(allow_nan=False) | st.integers(-(2**70), 2**70))
def test_the_values_are_those_that_prometheus_client_writes(
    help_text: str, label: str, value: float
) -> None:
    made = prepared(help_text, label, value)
    assert families(exposition(made)) == families(written_by_client(made))


def test_the_text_of_common_values_is_the_same() -> None:
    assert exposition(prepared()) == written_by_client(prepared())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True])
def test_special_values_are_read_back(value: float) -> None:
    ((*_, samples),) = [
        one for one in families(exposition(prepared(value=value))) if one[0] == "steps"
    ]
    assert math.isnan(samples[0][2]) if math.isnan(value) else samples[0][2] == value


def test_a_label_that_utf8_cannot_represent_does_not_prevent_the_scrape() -> None:
    assert exposition(prepared(label="a\udcff")) == exposition(prepared(label="a?"))


def test_only_get_and_head_are_answered() -> None:
    said: list[str] = []
    app = exposition_app(prepared)
    for method, length in (("GET", 1), ("POST", 0), ("HEAD", 0)):
        answer = app({"REQUEST_METHOD": method}, lambda status, _: said.append(status))
        assert bool(b"".join(answer)) == bool(length)
    assert [status[:3] for status in said] == ["200", "405", "200"]
