# SPDX-License-Identifier: Apache-2.0
"""The check of backends: which backend observes pages, and how to enable a better one."""

from __future__ import annotations

from typing import Any

from sentineld.base.errors import SentinelError
from sentineld.doctor.findings import Finding, Status, System
from sentineld.observe.backends import survey


def backend(system: System) -> Finding:
    """The best backend that the daemon or, if no daemon answers, this process can use."""
    if isinstance(system.daemon, SentinelError):
        return finding([verdict.to_json() for verdict in survey()])
    return finding(system.daemon["backends"])


def finding(backends: list[dict[str, Any]]) -> Finding:
    """The finding for these backends. backends: sorted from best to worst, in the format of
    `sentinelctl status --json`."""
    at = next(index for index, one in enumerate(backends) if one["usable"])
    cause = f"{backends[at]['name']} is used: {backends[at]['tells']}"
    better = backends[:at]
    if not better:
        return Finding("backend", Status.OK, cause)
    reasons = "; ".join(f"not {one['name']}: {one['problem']}" for one in better)
    return Finding("backend", Status.WARN, f"{cause}; {reasons}", better[0]["fix"])
