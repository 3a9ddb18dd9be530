# SPDX-License-Identifier: Apache-2.0
"""A user starts processes as fast as possible.

The daemon receives an event for each fork: it follows the forks of managed trainings through the
kernel's proc connector, which reports the forks of all processes.
"""

from __future__ import annotations

import os
import time

from tests.hostile.attack import Attack
from tests.hostile.attacker import Say
from tests.process_figures import cpu_seconds

FLOOD_S = 5.0


def start_processes(say: Say, duration_s: float) -> None:
    """Start and reap one process after another; reports the number of processes."""
    end_s = time.monotonic() + duration_s
    count = 0
    while time.monotonic() < end_s:
        pid = os.posix_spawn("/bin/true", ["true"], {})
        os.waitpid(pid, 0)
        count += 1
    say(count)


def test_a_flood_of_processes(attack: Attack) -> None:
    pid = attack.daemon.process.pid
    attack.hold(2)
    idle_s = cpu_seconds(pid)
    attack.hold(FLOOD_S)
    begin_s = cpu_seconds(pid)
    idle_s = begin_s - idle_s
    count = attack.start(start_processes, attack.scaled_s(FLOOD_S)).heard()
    flood_s = cpu_seconds(pid) - begin_s
    attack.check()
    per_process_s = (flood_s - idle_s) / count
    print(f"{count} processes, {per_process_s * 1e6:.0f} us of the daemon's CPU time for each")
