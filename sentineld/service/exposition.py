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
    """The values of all metrics of the registry. Each is a counter or a gauge whose name, and the
    names of whose labels, need no quotes."""
    return "".join(_lines(registry)).encode()


def _lines(registry: CollectorRegistry) -> Iterator[str]:
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield f"# HELP {name} {family.documentation.translate(_IN_HELP)}\n"
        yield f"# TYPE {name} {family.type}\n"
        for sample in family.samples:
            # prometheus_client sorts the labels, too, and users may have matched lines by text.
            labels = ",".join(
                [
                    f'{key}="{value.translate(_IN_LABELS)}"'
                    for key, value in sorted(sample.labels.items())
                ]
            )
            labels = f"{{{labels}}}" if labels else ""
            yield f"{sample.name}{labels} {float(sample.value)!r}\n"


def exposition_app(registry: CollectorRegistry) -> Callable[[Any, Any], list[bytes]]:
    """A WSGI application that answers GET requests with the metrics, and HEAD requests without.

    The answer is not compressed, because compression takes a third of the time of writing.
    """

    def app(environ: Any, start_response: Any) -> list[bytes]:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start_response("405 Method Not Allowed", [("Allow", "GET, HEAD")])
            return []
        body = exposition(registry) if environ["REQUEST_METHOD"] == "GET" else b""
        start_response("200 OK", [("Content-Type", CONTENT_TYPE)])
        return [body]

    return app
