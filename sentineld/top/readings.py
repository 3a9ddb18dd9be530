# SPDX-License-Identifier: Apache-2.0
"""The daemon's answers to the verbs `status` and `residency`, as the live view reads them.

A daemon of an earlier version leaves fields out; they then have the defaults of the classes below.
Names of layers and the texts in `reason` come from trainings of other users, so they are made
printable.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from sentineld.base.text import text_of
from sentineld.model import job

TEXT_CHARACTERS_MAX = 300


@dataclass(frozen=True)
class SessionReading:
    """One session at one moment."""

    pid: int
    """The process, or one of the group's processes."""
    state: str
    group: str = ""
    """The name of the group; empty for a single process."""
    reason: str = ""
    policy: str = ""
    fast: str = ""
    """The budget of the last attach, as it was asked for: a share of the peak, or bytes."""
    budget_bytes: int = 0
    charged_bytes: int = 0
    peak_bytes: int = 0
    resident_bytes: tuple[int, ...] = ()
    """By tier; empty if no plan is live."""
    promoted_bytes: int = 0
    demoted_bytes: int = 0
    late_moves: int = 0
    diverged_steps: int = 0
    step: int = 0
    predicted_step_ns: int | None = None
    fast_step_ns: int | None = None
    """The time of a step with all memory fast, from the profile."""
    fast_share: float | None = None
    """Measured by the last metering, 0..1; None: not metered yet."""
    predicted_fast_share: float | None = None
    disturbed: str = ""
    job: str = ""
    """The rank and its job as text; empty if the process belongs to no job."""

    @classmethod
    def of(cls, session: dict[str, Any]) -> SessionReading:
        """A session from the answer to `status`."""
        known = {one.name: session[one.name] for one in fields(cls) if one.name in session}
        for name in ("state", "group", "reason", "policy", "fast", "disturbed"):
            known[name] = text_of(known.get(name) or "", TEXT_CHARACTERS_MAX)
        own = job.of_message(session.get("job"))
        known["job"] = own.title if own else ""
        known["resident_bytes"] = tuple(known.get("resident_bytes", ()))
        return cls(**known)

    @property
    def key(self) -> str:
        """Identifies the session among all sessions of the daemon. The PID is not enough: if the
        root of a managed tree begins to run under the shim, it also has a session of its own."""
        return f"{self.pid} {self.group}".rstrip()

    @property
    def title(self) -> str:
        """Names the process or the group."""
        return self.group or f"process {self.pid}"

    @property
    def attached(self) -> bool:
        """Whether the process is attached; if not, budget and policy are those of an earlier
        attach."""
        return self.state != "registered"

    @property
    def managed(self) -> bool:
        """Whether a plan is live."""
        return bool(self.resident_bytes)


@dataclass(frozen=True)
class Reading:
    """The daemon and its sessions at one moment."""

    version: str
    pid: int
    time_ns: int
    """The daemon's CLOCK_MONOTONIC."""
    cpu_ns: int
    """CPU time of the daemon since its start."""
    memory_bytes: int
    tiers: str
    """The kind of the tiers, as text."""
    sessions: tuple[SessionReading, ...]

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Reading:
        """A reading from the answer to `status`."""
        return cls(
            version=text_of(answer["version"], TEXT_CHARACTERS_MAX),
            pid=answer["pid"],
            time_ns=answer.get("time_ns", 0),
            cpu_ns=answer.get("cpu_ns", 0),
            memory_bytes=answer.get("memory_bytes", 0),
            tiers=_tiers_of(answer),
            # Skip sessions without a pid: if the last process of a cgroup calls exec(), the
            # cgroup's session has no process for a moment.
            sessions=tuple(
                sorted(
                    (SessionReading.of(one) for one in answer["sessions"] if one["pid"]),
                    key=_by_pid_and_group,
                )
            ),
        )

    def session(self, key: str | None) -> SessionReading | None:
        """The session with this key; None if there is none."""
        return next((one for one in self.sessions if one.key == key), None)

    def continued(self, earlier: SessionReading) -> SessionReading | None:
        """The current session of `earlier`'s group, which can have another PID and another key;
        None if the group has no session any more, or if `earlier` is of a single process."""
        if not earlier.group:
            return None
        return next((one for one in self.sessions if one.group == earlier.group), None)


@dataclass(frozen=True)
class LayerReading:
    """Resident bytes of a layer's tensors, by tier."""

    layer: str
    bytes_by_tier: tuple[int, ...]


@dataclass(frozen=True)
class ResidencyReading:
    """A session's residency by layer at one moment."""

    key: str
    """The session's key."""
    layers: tuple[LayerReading, ...]
    other_bytes: tuple[int, ...]
    """Bytes by tier that belong to no layer, such as dead pages."""

    @classmethod
    def of(cls, key: str, answer: dict[str, Any]) -> ResidencyReading:
        """A reading from the answer to `residency` for the session with this key."""
        layers = (
            LayerReading(text_of(one["layer"], TEXT_CHARACTERS_MAX), tuple(one["bytes"]))
            for one in answer["layers"]
        )
        return cls(key, tuple(layers), tuple(answer["other_bytes"]))


def _by_pid_and_group(session: SessionReading) -> tuple[int, str]:
    return session.pid, session.group


def _tiers_of(answer: dict[str, Any]) -> str:
    if answer.get("emulated"):
        return f"emulated tiers ({text_of(answer['emulated'], TEXT_CHARACTERS_MAX)})"
    if answer.get("paged"):
        return "paged tiers"
    if answer.get("swap"):
        return "memory and swap"
    return f"{len(answer['tiers'])} tiers" if answer.get("tiers") else "no tiers"
