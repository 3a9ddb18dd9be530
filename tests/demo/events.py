# SPDX-License-Identifier: Apache-2.0
"""The events that guest_run.py sends to the demo (tests/demo/__main__.py).

An event is a JSON object on one line of guest_run.py's standard output. The reply to a request is
one line on its standard input.

    {"event": "progress", "text"}
    {"event": "count", "tensors": [[start, end]]}
                                  request; reply: "ok" when the plugin counts and its clock runs,
                                  "none" without a plugin
    {"event": "counted"}          request; reply: "ok" when the plugin has stopped
    {"event": "run", ...}         the result of a policy's run; the plugin's counts since the
                                  previous "run" belong to this run
    {"event": "done", ...}        the figures common to all runs
"""

from __future__ import annotations

import json
import sys
from typing import Any


def send(event: str, **values: Any) -> None:
    """Send an event."""
    print(json.dumps({"event": event, **values}), flush=True)


def say(text: str) -> None:
    """Report progress."""
    send("progress", text=text)


def request(event: str, **values: Any) -> str:
    """Send a request and return the reply."""
    send(event, **values)
    return sys.stdin.readline().strip()
