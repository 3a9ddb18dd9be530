# SPDX-License-Identifier: Apache-2.0
"""Sending layouts to the shim."""

from __future__ import annotations

import os
import time

from sentineld.machine.substrate import NO_PROVISION, Provision
from sentineld.model.plan import Layout
from sentineld.model.tiers import Tiers
from sentineld.observe.shim_link import ShimLink
from sentineld.plan.layout_wire import NO_TABLES, Tables, pack_layout


def new_layout_id() -> int:
    """A layout id; unique across restarts of the daemon, because layouts outlive the daemon."""
    return time.time_ns()


def send_layout(
    link: ShimLink,
    layout: Layout,
    tiers: Tiers,
    layout_id: int,
    tables: Tables = NO_TABLES,
    provision: Provision = NO_PROVISION,
) -> None:
    """Send a layout to the shim; the caller must let the Inbox expect the answer. Raises EOFError.

    layout_id: a new_layout_id(). provision: see Substrate.
    """
    fd = os.memfd_create("sentineld-layout", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(fd, "wb", closefd=False) as file:
            count = len(layout.waits)
            file.write(pack_layout(layout, layout_id, tiers, count, *tables))
        message = {"type": "layout", "layout_id": layout_id, **provision.fields}
        link.send(message, [fd, *provision.fds])
    finally:
        os.close(fd)
