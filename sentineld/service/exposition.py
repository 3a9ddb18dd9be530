# SPDX-License-Identifier: Apache-2.0
"""Writes metrics in Prometheus's text format, version 0.0.4, and answers HTTP requests with them.

This module does not use prometheus_client. For each value, the encoders of prometheus_client match
the names of all labels against regular expressions, and its collectors create an object. With 50
sessions, both would need more CPU time than collecting the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABELS_CACHED = 1 << 14
"""Number of combinations of labels whose text is kept. The text of one takes about half a kilobyte.
50 sessions have about 1,700 series, so at most as many combinations."""

_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_IN_LABELS = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

Rows = Iterable[tuple[tuple[str, ...], float]]
"""The values of a metric, in base units, each with the values of its labels."""


class Family(NamedTuple):
    """A metric and its values. The metric's name and the names of its labels must not need
    quotes."""

    name: str  # a counter's name ends in _total
    kind: str  # "counter" or "gauge"
    help: str
    labels: tuple[str, ...]
    rows: Rows  # label values in the order of `labels`


Collect = Callable[[], Iterable[Family]]
"""Collects the metrics of one scrape."""


def exposition(families: Iterable[Family]) -> bytes:
    """The text of these metrics. A character that UTF-8 cannot represent becomes "?", because one
    such label must not prevent the scrape of all other metrics."""
    return "".join(_lines(families)).encode(errors="replace")


def _lines(families: Iterable[Family]) -> Iterator[str]:
    for name, kind, help_text, labels, rows in families:
        yield f"# HELP {name} {help_text.translate(_IN_HELP)}\n"
        yield f"# TYPE {name} {kind}\n"
        for values, value in rows:
            yield f"{name}{_labels(labels, values)} {float(value)!r}\n"


# Most series of a scrape have the same labels as in the scrape before.
@lru_cache(maxsize=LABELS_CACHED)
def _labels(labels: tuple[str, ...], values: tuple[str, ...]) -> str:
    """The labels of a series, in braces; "" without labels.

    The labels are in the order in which prometheus_client writes them, so that a search for a whole
    line of its output finds the same line in this output, too.
    """
    pairs = sorted(zip(labels, values, strict=True))
    text = ",".join(f'{label}="{_escaped(value)}"' for label, value in pairs)
    return f"{{{text}}}" if text else ""


def _escaped(value: str) -> str:
    """A label's value, escaped for the text format."""
    return value if value.isalnum() else value.translate(_IN_LABELS)


def exposition_app(collect: Collect) -> Callable[[Any, Any], list[bytes]]:
    """A WSGI application that answers GET requests with the metrics. The answer to a HEAD request
    has no body.

    The answer is not compressed, because compressing the text takes almost as long as writing it.
    """

    def app(environ: Any, start_response: Any) -> list[bytes]:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start_response("405 Method Not Allowed", [("Allow", "GET, HEAD")])
            return []
        body = exposition(collect()) if environ["REQUEST_METHOD"] == "GET" else b""
        start_response("200 OK", [("Content-Type", CONTENT_TYPE)])
        return [body]

    return app
