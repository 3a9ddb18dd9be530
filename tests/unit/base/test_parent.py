# SPDX-License-Identifier: Apache-2.0
"""Processes that end together with their parents."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

CHILD = """
import sys, time
from sentineld.base.parent import die_with
print(die_with(int(sys.argv[1])), flush=True)
time.sleep(600)
"""
PARENT = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {CHILD!r}, str(os.getpid())])
time.sleep(600)
"""


def test_a_process_is_killed_when_its_parent_is() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as told:
        assert told.readline() == "True\n"
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        # The child has inherited the pipe's write end, so end-of-file shows that the child has
        # ended.
        assert select.select([told], [], [], 60)[0]
        assert told.read() == ""


def test_a_process_whose_parent_has_ended_is_told_so() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    done = subprocess.run(
        [sys.executable, "-c", CHILD.replace("600", "0"), str(ended.pid)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
