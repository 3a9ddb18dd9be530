# SPDX-License-Identifier: Apache-2.0
"""Fixed answers of a daemon with three sessions, and a control client that gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sentineld.base.errors import SentinelError

MIB = 1 << 20
SECOND_NS = 1_000_000_000

TRAINING = 4242
"""The managed process."""
LATER = 4711
"""A process whose steps are recorded, so that a plan can be made."""
IDLE = 31337
"""A process that is only registered."""


def session(pid: int, state: str, reason: str, **fields: Any) -> dict[str, Any]:
    """A session as in the answer to `status`, without the fields that `top` does not read."""
    return {
        "pid": pid,
        "uid": 1000,
        "state": state,
        "reason": reason,
        "policy": "",
        "fast": "",
        "budget_bytes": 0,
        "charged_bytes": 0,
        "peak_bytes": 0,
        "resident_bytes": [],
        "promoted_bytes": 0,
        "demoted_bytes": 0,
        "late_moves": 0,
        "step": 0,
        "predicted_step_ns": None,
        "fast_step_ns": None,
        "fast_share": None,
        "predicted_fast_share": None,
        "disturbed": "",
        **fields,
    }


def status(second: float = 0.0) -> dict[str, Any]:
    """The answer to `status`, this many seconds after the first one."""
    step = 800 + int(second / 0.21)
    return {
        "version": "0.1.0",
        "pid": 900,
        "time_ns": int(second * SECOND_NS),
        "cpu_ns": int(second * 0.034 * SECOND_NS),
        "memory_bytes": 84 * MIB,
        "tiers": [{}, {}],
        "emulated": "cxl",
        "paged": "",
        "sessions": [
            session(IDLE, "registered", "the shim said hello", step=12),
            session(
                TRAINING,
                "managed",
                "the plan is live, budget 48.0 MiB",
                policy="auto",
                fast="20%",
                budget_bytes=48 * MIB,
                charged_bytes=46 * MIB,
                peak_bytes=240 * MIB,
                resident_bytes=[45 * MIB, 160 * MIB],
                promoted_bytes=int(9000 * MIB + second * 310 * MIB),
                demoted_bytes=int(8900 * MIB + second * 305 * MIB),
                late_moves=17 + int(second / 2),
                step=step,
                predicted_step_ns=205_000_000,
                fast_step_ns=180_000_000,
                fast_share=0.9184,
                predicted_fast_share=0.9213,
            ),
            session(
                LATER,
                "allocation",
                "recording steps until two are identical",
                policy="sentinel+spill",
                fast="1610612736",
                step=6,
            ),
        ],
    }


def residency() -> dict[str, Any]:
    """The answer to `residency`."""
    layers = [{"layer": "(step begin)", "bytes": [64 << 10, 0]}]
    for block in range(12):
        fast = (12 - block) * MIB // 4
        for name, size in (("ln_1", MIB // 64), ("attn.c_attn", 4 * MIB), ("mlp.c_fc", 6 * MIB)):
            layers.append(
                {
                    "layer": f"transformer.h.{block}.{name}",
                    "bytes": [min(fast, size), max(size - fast, 0)],
                }
            )
    layers.append({"layer": "(optimizer)", "bytes": [2 * MIB, 30 * MIB]})
    return {"stretch": 7, "layers": layers, "other_bytes": [MIB, 0]}


class FakeDaemon:
    """A control client. asked: the requests other than status and residency."""

    def __init__(self, *statuses: dict[str, Any]) -> None:
        """statuses: the answers to `status`, in order; the last one is repeated."""
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.statuses = list(statuses)
        self.error: SentinelError | None = None
        """The error that every request raises. None: requests are answered."""
        self.answers: dict[str, Callable[[dict[str, Any]], Any]] = {}
        """The answers to the other verbs, computed from their arguments."""

    def ask(self, verb: str, **arguments: Any) -> Any:
        """Answer a verb."""
        if self.error is not None:
            raise self.error.fresh()
        if verb == "status":
            return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if verb == "residency":
            return residency()
        self.asked.append((verb, arguments))
        return self.answers[verb](arguments)

    def ask_long(self, verb: str, **arguments: Any) -> Any:
        """Answer a verb."""
        return self.ask(verb, **arguments)
