# SPDX-License-Identifier: Apache-2.0
"""The dashboard for one machine: a training in a guest, whose Prometheus scrapes the daemon."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from sentineld import __version__
from tests.board_pictures.answers import Answers, ask, last_scrape_s, now_s
from tests.vm.fixtures import SYSTEM
from tests.vm.guest import TREE, Guest
from tests.vm.host import phase
from tests.vm.installed import install
from tests.vm.prometheus import get, prometheus
from tests.vm.rootfs import MODULE
from tests.vm.training import Training, wait, wait_for_probes

MANAGED_S = 300
"""Time for which the training runs under its plan."""
METER_S = 60
"""Pause between two metered steps. Only a metered step has a fast share."""
SCRAPE_S = 5
"""Time between two scrapes, as in the installed configuration."""
ATTACH = "--fast 35% --policy sentinel+spill"


def measure(board: dict[str, Any]) -> Answers:
    """Run the training, and send Prometheus the dashboard's queries."""
    with (
        tempfile.TemporaryDirectory() as stage,
        Guest(tcg_thread=SYSTEM.tcg_thread, cpus=SYSTEM.cpus) as guest,
    ):
        with phase("installation"):
            guest.put_tree()
            guest.put_artifacts()
            guest.run(f"insmod {TREE}/{MODULE}")
            install(guest, Path(stage))
            guest.run("systemctl start sentineld", timeout=180)
            wait_for_probes(guest)
        with prometheus(guest, SCRAPE_S):
            return _train(board, guest)


def _train(board: dict[str, Any], guest: Guest) -> Answers:
    ask_api = partial(get, guest)
    with phase("start of the training"):
        begin_s = now_s(ask_api)
        training = Training(guest)
        training.expect_another_step()
    with phase("profiling and planning"):
        training.ask("attach", ATTACH)
        wait("managed", lambda: training.in_state("managed"), 600)
    with phase("managed training"):
        end = time.monotonic() + MANAGED_S
        while time.monotonic() < end:
            time.sleep(min(METER_S, max(0.0, end - time.monotonic())))
            training.meter(1)
    kernel = guest.run("uname -r").stdout.strip()
    source = (
        f"sentineld {__version__}, a training attached with {ATTACH}, in a QEMU guest with two"
        f" memory nodes ({guest.accelerator}, Linux {kernel})"
    )
    # The queried time ends at the last successful scrape, because later scrapes may have failed: in
    # a busy guest, a scrape can exceed Prometheus's time limit.
    answers = ask(board, ask_api, source, begin_s, last_scrape_s(ask_api))
    training.end()
    guest.check_kernel_log()
    return answers
