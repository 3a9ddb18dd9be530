# SPDX-License-Identifier: Apache-2.0
"""Kinds of log lines, and the facts that a line carries as fields of the systemd journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from enum import StrEnum


class LogEvent(StrEnum):
    """A kind of log line. The value is the line's MESSAGE_ID in the journal. A value never changes,
    because scripts and systemd/sentineld.catalog use it."""

    STARTED = "f61664bf491a4c29bed14e38488ea9df"  # the daemon accepts connections
    CONFIG_RELOADED = "dc3fcf720cda4a66b8e5fdfa594bb3f1"  # new settings are in use
    CONFIG_NOT_RELOADED = "b64fa6f578544ea5907a23cf173e48e1"  # the new configuration is invalid
    RESTART_NEEDED = "c690afbcebec435487f31de076063858"  # changed settings need a restart
    NO_TIERS = "e8b92422c7ae4c00a049527ca166d230"  # the machine's tiers cannot be used
    NO_PROBES = "0429f29c3ded46bca6739022908a6a9f"  # the eBPF probes cannot be used
    METRICS_NOT_SERVED = "bf1febe0579c4ccb93b6abac0bc3e502"  # the metrics cannot be served now
    METRICS_SERVED = "ba3a2cf25ffa42039aaac928672c46c4"  # the metrics are served again
    CONNECTION_CLOSED = "272acfa3b28c41a0a0dbccb872734739"  # a connection was refused or closed
    REGISTERED = "6cd80d54b4494cd3ad6d515cc2e7a62c"  # a shim has sent its first message, the hello
    ATTACHED = "dc8462339e4e46699cdd0d1da2248747"  # the daemon begins to profile a process
    MANAGED = "fb83754298f54b1ebc1d3d0530df7692"  # a plan is live
    DETACHED = "858ec73026844bc987fa7253e0e9cce5"  # a caller has detached a process
    NOT_MANAGED = "88f62568017f4d62a3c264dce57cacab"  # after an error, a process is not managed
    PLAN_LEFT = "896e375755e84ab7af6350a5dd0aa11f"  # the steps no longer follow the live plan
    PLAN_WRONG = "434da806b2694419b0e200c326c012b4"  # an assumption of the plan is wrong
    NOT_REPLANNED = "dd1f04cf153a4637924f63fcf5bcd3e7"  # no plan for new placements or a new share
    POLICY_FAILED = "d6f828773c5b4118ba486126551416d7"  # another policy made the plan instead
    MOVER_STOPPED = "dea3b06346ff4c3eac0a58c6114d0ac1"  # a mover cannot continue
    RECORDS_LOST = "572144cc05b2454cb5368b7c311b6439"  # a ring or log of records was full
    STATE_NOT_KEPT = "701c2a5df97a4821b45940b86e7e945f"  # a state file cannot be used
    SESSION_ENDED = "8f8c8767477a4d9094b6fbfaff06ec8e"  # a session has ended
    GROUP_MANAGED = "3663e81dd9f146e8bf24bc30fc59b6bc"  # policy temperature manages processes
    GROUP_LEFT = "ebdf5152e5334875af8e2563e92a65cf"  # policy temperature stopped managing processes
    INTERNAL_ERROR = "6b7234e549ef43ec91b5b796fd19b2de"  # an error in the daemon's code


LOGGED_FIELDS: ContextVar[Callable[[], Mapping[str, object]]] = ContextVar(
    "LOGGED_FIELDS", default=dict
)
"""A function that returns facts about the session that the current thread serves; see about()."""


def about(event: LogEvent, **fields: object) -> dict[str, object]:
    """The argument `extra` of a logging statement.

    fields: facts about the line: session (its name), pid, uid, policy and fast (the budget), as far
        as they are known. They are added to those of LOGGED_FIELDS. If `uid` is given, LogLimit
        counts the line for this user.
    """
    user = {"uid": fields["uid"]} if "uid" in fields else {}
    return {"event": event, "fields": fields, **user}
