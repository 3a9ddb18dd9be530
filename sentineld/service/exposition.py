# SPDX-License-Identifier: Apache-2.0
"""Writes metrics in Prometheus's text format, version 0.0.4, and answers HTTP requests with them.

The encoders of prometheus_client check the name of each label of each value by regular expressions.
With 50 sessions, they would need more CPU time than collecting the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_IN_LABELS = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def exposition(registry: CollectorRegistry) -> bytes:
    """The values of all metrics of the registry, as text.

    Each metric has to be a counter or a gauge. Its name and the names of its labels must not need
    quotes.
    """
    return "".join(_lines(registry)).encode()


def _lines(registry: CollectorRegistry) -> Iterator[str]:
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield f"# HELP {name} {family.documentation.translate(_IN_HELP)}\n"
        yield f"# TYPE {name} {family.type}\n"
        # All samples of a family have the same labels. They are sorted as prometheus_client does,
        # because users may search for whole lines.
        keys = sorted(family.samples[0].labels) if family.samples else []
        for sample in family.samples:
            labels = ",".join([f'{key}="{_escaped(sample.labels[key])}"' for key in keys])
            labels = f"{{{labels}}}" if labels else ""
            yield f"{sample.name}{labels} {float(sample.value)!r}\n"


def _escaped(value: str) -> str:
    """A label's value, quoted for the text format."""
    return value if value.isalnum() else value.translate(_IN_LABELS)


def exposition_app(registry: CollectorRegistry) -> Callable[[Any, Any], list[bytes]]:
    """A WSGI application that answers GET requests with the metrics. The answer to a HEAD request
    has no body.

    The answer is not compressed, because compressing the text takes almost as long as writing it.
    """

    def app(environ: Any, start_response: Any) -> list[bytes]:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start_response("405 Method Not Allowed", [("Allow", "GET, HEAD")])
            return []
        body = exposition(registry) if environ["REQUEST_METHOD"] == "GET" else b""
        start_response("200 OK", [("Content-Type", CONTENT_TYPE)])
        return [body]

    return app
