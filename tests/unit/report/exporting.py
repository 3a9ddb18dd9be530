# SPDX-License-Identifier: Apache-2.0
"""Makes an exporter of Chrome trace events for a toy trace."""

from __future__ import annotations

from sentineld.profile.trace import profile_of
from sentineld.report.chrome import Exporter
from sentineld.report.labels import label
from sentineld.report.tensors import sort_rows, tensor_rows
from tests.unit.traces import recorded

TRACE = recorded()
PROFILE = profile_of(TRACE)
LABELS = label(TRACE, PROFILE)
PID = 4242


def exporter(top: int | None = None) -> Exporter:
    rows = sort_rows(tensor_rows(PROFILE, LABELS), "bytes")[:top]
    return Exporter(TRACE, PROFILE, LABELS, rows)
