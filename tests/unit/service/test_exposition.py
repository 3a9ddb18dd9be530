# SPDX-License-Identifier: Apache-2.0
"""The text of the metrics, compared with that of prometheus_client, and read by its parser."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from sentineld.service.exposition import exposition, exposition_app

TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r"), max_size=9)


class Prepared(Collector):
    """A counter and a gauge with given values."""

    def __init__(self, help_text: str, label: str, value: float) -> None:
        self._help, self._label, self._value = help_text, label, value

    def collect(self) -> Iterator[Metric]:
        counter = CounterMetricFamily("moved_bytes_total", self._help, labels=("two", "one"))
        counter.add_metric((self._label, "b"), self._value)
        counter.add_metric(("", self._label), 7)
        yield counter
        yield GaugeMetricFamily("steps", self._help, value=self._value)
        yield GaugeMetricFamily("shares", self._help, labels=("one",))


def registry(help_text: str = "A text.", label: str = "a", value: float = 1.5) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(Prepared(help_text, label, value))
    return made


def families(text: bytes) -> list[tuple[Any, ...]]:
    return [
        (one.name, one.type, one.documentation, [(s.name, s.labels, s.value) for s in one.samples])
        for one in text_string_to_metric_families(text.decode())
    ]


@given(TEXTS, TEXTS, st.floats(allow_nan=False) | st.integers(-(2**70), 2**70))
def test_the_values_are_those_that_prometheus_client_writes(
    help_text: str, label: str, value: float
) -> None:
    made = registry(help_text, label, value)
    assert families(exposition(made)) == families(generate_latest(made))


def test_the_text_of_common_values_is_the_same() -> None:
    assert exposition(registry()) == generate_latest(registry())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True])
def test_special_values_are_read_back(value: float) -> None:
    ((*_, samples),) = [
        one for one in families(exposition(registry(value=value))) if one[0] == "steps"
    ]
    assert math.isnan(samples[0][2]) if math.isnan(value) else samples[0][2] == value


def test_process_metrics_are_written() -> None:
    made = CollectorRegistry()
    ProcessCollector(registry=made)
    found = {name: kind for name, kind, *_ in families(exposition(made))}
    assert found["process_cpu_seconds"] == "counter"
    assert found["process_resident_memory_bytes"] == "gauge"


def test_only_get_and_head_are_answered() -> None:
    said: list[str] = []
    app = exposition_app(registry())
    for method, length in (("GET", 1), ("POST", 0), ("HEAD", 0)):
        answer = app({"REQUEST_METHOD": method}, lambda status, _: said.append(status))
        assert bool(b"".join(answer)) == bool(length)
    assert [status[:3] for status in said] == ["200", "405", "200"]
