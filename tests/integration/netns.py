# SPDX-License-Identifier: Apache-2.0
"""Two network namespaces with a link between them, in place of two machines of a job."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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

    def read(self, url: str) -> str:
        """Request a URL from within the namespace; return the body of the answer. Raises
        CalledProcessError if there is no answer."""
        reader = (
            f"import urllib.request as u; print(u.urlopen({url!r}, timeout=60).read().decode())"
        )
        command = [*self.wrapper, sys.executable, "-c", reader]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def torchrun(
    nodes: Sequence[Node], number: int, port: int, job: str, shims: Path, script: Sequence[str]
) -> list[str]:
    """The command of torchrun on a node, which starts one rank under the shim.

    number: index of the node. port: the port on the first node at which the ranks meet. shims: the
        socket to which the shim connects. script: the training's path and arguments.
    """
    options = ["--nnodes", str(len(nodes)), "--node-rank", str(number), "--nproc-per-node", "1"]
    options += ["--rdzv-id", job, "--master-addr", nodes[0].address, "--master-port", str(port)]
    return [
        *nodes[number].wrapper,
        *("env", f"SENTINELD_SHIM_SOCKET={shims}"),
        f"GLOO_SOCKET_IFNAME={nodes[number].interface}",
        *(sys.executable, "-m", "torch.distributed.run", *options, "--no-python"),
        *(sys.executable, "-m", "sentineld.shim", *script),
    ]


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
