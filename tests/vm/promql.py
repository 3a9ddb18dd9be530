# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest: sends each expression of a dashboard to Prometheus.

`python3 promql.py DASHBOARD.json` prints {expression: response} as JSON, error
responses included. VARIABLES replace Grafana's variables.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

PROMETHEUS = "http://127.0.0.1:9090/api/v1/query"

VARIABLES = {"$__rate_interval": "1m", "$session": ".*"}


def ask(expression: str) -> Any:
    """Prometheus's response to the expression; it may be an error."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"{PROMETHEUS}?{query}", timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


def main(path: str) -> None:
    """Print the responses to all expressions."""
    with open(path) as file:
        board = json.load(file)
    panels = [inner for panel in board["panels"] for inner in [panel, *(panel.get("panels") or [])]]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets") or []]
    json.dump({expression: ask(expression) for expression in expressions}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
