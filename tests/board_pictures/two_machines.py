# SPDX-License-Identifier: Apache-2.0
"""Measures the values of the fleet's dashboard in a training of two ranks. The ranks run in two
network namespaces of this machine, in place of two machines. Each namespace has a daemon; the
second daemon's slow tier is slower than the first one's."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sentineld import __version__
from tests.board_pictures.answers import Answers, ask, now_s
from tests.integration.netns import Node, torchrun, two_nodes
from tests.integration.test_daemon import Daemon
from tests.vm.host import REPOSITORY, phase
from tests.vm.rootfs import root_command
from tests.vm.training import wait

FILES = REPOSITORY / "docs/prometheus"
PLACE = "/mnt/prometheus"
"""The folder for Prometheus's files, as a path in the tree of the guests' image. Prometheus runs
chrooted in this tree."""
PORT = 9090
TARGETS = '["node1:9464", "node2:9464"]'
"""The targets in sentineld-fleet.yml."""

SCRIPT = REPOSITORY / "tests/board_pictures/ranks.py"
JOB = "bert-7"
MASTER_PORT = 29512
PRESET = "optane"
FAST = "20%"
POLICY = "sentinel+spill"
SLOW_TIER = """
[tiers]
slow_read_bytes_per_s = 0.8e9
slow_write_bytes_per_s = 0.25e9
"""
"""The second machine's slow tier: a quarter of the preset's bandwidths for one thread."""
SHOWN_S = 240
"""Length of the shown period."""
MANAGED_S = 300 + SHOWN_S
"""Time for which the training runs under its plans. The rules compute means over five minutes, so
managed steps must have run for five minutes before the shown period begins."""


class Prometheus:
    """Prometheus from the guests' image, in one of the network namespaces (`node`). It uses the
    configuration and the rules in docs/prometheus, but other targets."""

    def __init__(self, folder: Path, node: Node, targets: dict[str, str]) -> None:
        """targets: the address and port of each daemon, by the name of its machine."""
        for file in FILES.glob("*.rules.yml"):
            shutil.copy(file, folder)
        static = "".join(
            f'\n      - targets: ["{target}"]\n        labels: {{instance: {name}}}'
            for name, target in targets.items()
        )
        shipped = (FILES / "sentineld-fleet.yml").read_text()
        text = shipped.replace(f"\n      - targets: {TARGETS}", static)
        assert text != shipped
        (folder / "sentineld-fleet.yml").write_text(text)
        options = f"--config.file={PLACE}/sentineld-fleet.yml --storage.tsdb.path={PLACE}/data"
        listen = f"--web.listen-address=127.0.0.1:{PORT}"
        self._node = node
        with (folder / "prometheus.log").open("w") as log:
            self._process = subprocess.Popen(
                [
                    *node.wrapper,
                    *root_command(f"exec prometheus {options} {listen}", {folder: PLACE}),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def get(self, path: str) -> Any:
        """The data in the response to a request to the API."""
        url = f"http://127.0.0.1:{PORT}/api/v1/{path}"
        return json.loads(self._node.read(url))["data"]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def measure(board: dict[str, Any]) -> Answers:
    """Run the training, and send Prometheus the dashboard's queries."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nodes = stack.enter_context(two_nodes())
        daemons = [
            _start_daemon(folder / node.interface, node, more)
            for node, more in zip(nodes, ("", SLOW_TIER), strict=True)
        ]
        for daemon in daemons:
            stack.callback(daemon.stop)
        files = folder / "prometheus"
        files.mkdir()
        targets = {
            node.interface: f"{node.address}:{daemon.metrics_port}"
            for node, daemon in zip(nodes, daemons, strict=True)
        }
        server = Prometheus(files, nodes[0], targets)
        stack.callback(server.close)
        wait("Prometheus", lambda: _answers(server), 60)
        with phase("start of the training"):
            stack.enter_context(_training(nodes, daemons))
            wait("both ranks", lambda: all(map(_rank, daemons)), 120)
        with phase("profiling and planning"):
            for daemon in daemons:
                pid = str((_rank(daemon) or {})["pid"])
                done = daemon.ctl("attach", pid, "--fast", FAST, "--policy", POLICY)
                assert done.returncode == 0, done.stderr
            wait("managed", lambda: all(map(_managed, daemons)), 300)
        with phase("managed training"):
            time.sleep(MANAGED_S)
        source = (
            f"sentineld {__version__}, a training with DistributedDataParallel on two network"
            f" namespaces of one machine; emulated tiers: {PRESET} on node1, {PRESET} at a quarter"
            f" of its bandwidth on node2; {FAST} of the peak is fast"
        )
        end_s = now_s(server.get)
        return ask(board, server.get, source, end_s - SHOWN_S, end_s)


def _start_daemon(folder: Path, node: Node, more: str) -> Daemon:
    """more: further lines of the configuration."""
    folder.mkdir()
    config = f'metrics_address = "{node.address}"\n{more}'
    return Daemon(folder, "--tiers", f"emulated:{PRESET}", wrapper=node.wrapper, config=config)


def _answers(server: Prometheus) -> bool:
    with contextlib.suppress(subprocess.CalledProcessError):
        return bool(now_s(server.get))
    return False


def _rank(daemon: Daemon) -> dict[str, Any] | None:
    """The status of the rank's session; None if the rank has no session yet. torchrun itself never
    has one, because it runs without the shim."""
    return next((one for one in daemon.sessions() or () if one["job"]), None)


def _managed(daemon: Daemon) -> bool:
    return (_rank(daemon) or {}).get("state") == "managed"


@contextlib.contextmanager
def _training(nodes: tuple[Node, Node], daemons: list[Daemon]) -> Iterator[None]:
    """Run torchrun in both namespaces during the block; writes build/dashboards/rank-N.log."""
    agents = []
    for number, daemon in enumerate(daemons):
        shims = daemon.folder / "shim.sock"
        command = torchrun(nodes, number, MASTER_PORT, JOB, shims, [str(SCRIPT)])
        log = REPOSITORY / f"build/dashboards/rank-{number}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as output:
            agents.append(
                subprocess.Popen(
                    command,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=REPOSITORY,
                )
            )
    try:
        yield
    finally:
        for agent in agents:
            agent.terminate()
        for agent in agents:
            agent.wait()
