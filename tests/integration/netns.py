# SPDX-License-Identifier: Apache-2.0
"""Two network namespaces with a link between them, in place of two machines of a job."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pyroute2 import IPRoute, netns
from pyroute2.netlink.exceptions import NetlinkError


@dataclass(frozen=True)
class Node:
    """One of the namespaces."""

    name: str
    address: str
    interface: str

    @property
    def wrapper(self) -> list[str]:
        """A command prefix: nsenter, which enters the namespace and then execs the command."""
        return ["nsenter", f"--net=/run/netns/{self.name}"]


@contextlib.contextmanager
def two_nodes() -> Iterator[tuple[Node, Node]]:
    """Create the namespaces for the duration of the block; skip the test if this is impossible."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    first, second = (
        Node(f"sentineld-{os.getpid()}-{index}", f"192.0.2.{index}", f"node{index}")
        for index in (1, 2)
    )
    with contextlib.ExitStack() as stack:
        try:
            for node in (first, second):
                netns.create(node.name)
                stack.callback(netns.remove, node.name)
        except OSError as error:
            pytest.skip(f"network namespaces cannot be created: {error.strerror}")
        with IPRoute(netns=first.name) as ip:
            try:
                ip.link(
                    "add",
                    ifname=first.interface,
                    kind="veth",
                    peer={"ifname": second.interface, "net_ns_fd": second.name},
                )
            except NetlinkError as error:
                pytest.skip(f"this kernel has no veth: {error}")
        for node in (first, second):
            with IPRoute(netns=node.name) as ip:
                (index,) = ip.link_lookup(ifname=node.interface)
                ip.addr("add", index=index, address=node.address, prefixlen=24)
                for up in (index, *ip.link_lookup(ifname="lo")):
                    ip.link("set", index=up, state="up")
        yield first, second
