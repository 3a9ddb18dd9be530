# SPDX-License-Identifier: Apache-2.0
"""Answers a shim's hello."""

from __future__ import annotations

import logging

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.control.frames import Message
from sentineld.machine.machine import Machine
from sentineld.observe.shim_link import ShimLink

log = logging.getLogger(__name__)


def welcome(link: ShimLink, machine: Machine, name: str, *, has_layout: bool) -> None:
    """Answer the hello. On paged tiers, a process started by `sentinelctl run` also gets its pager.

    name: the session's name. has_layout: whether the process still has the layout of an earlier
        daemon. On paged tiers, a process with a layout also has its pager already. Raises EOFError
        if the process does not read its socket.
    """
    message: Message = {"type": "welcome", "session": name}
    fast = None if has_layout else _announced(link, machine.config.fast)
    try:
        with machine.substrate.first_provision(link, fast) as provision:
            link.send({**message, **provision.fields}, list(provision.fds))
    except (SentinelError, OSError) as error:  # OSError: for example, no descriptor is free
        log.warning("process %d gets no pager before it has a plan: %s", link.pid, error)
        link.send(message)


def _announced(link: ShimLink, default: str) -> FastBudget | None:
    """The budget with which `sentinelctl run` will attach the process; None if `sentinelctl run`
    did not start the process or if the announced budget is invalid. default: the configuration's
    budget."""
    announced = link.hello.get("fast")
    if not isinstance(announced, str):
        return None
    try:
        return FastBudget.parse(announced or default)
    except SentinelError:
        return None
