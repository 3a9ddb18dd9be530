# SPDX-License-Identifier: Apache-2.0
"""The capabilities of the systemd unit, with the drop-in that the documentation gives for policy
`temperature`, suffice for what the daemon opens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NOBODY = "65534"
OPEN_PAGEMAP = """
import sys
from sentineld.base.errors import SentinelError
from sentineld.observe.anonymous import AnonymousPages
try:
    AnonymousPages(int(sys.argv[1])).close()
except SentinelError as error:
    print(error)
"""


def bounding_set(path: str) -> str:
    """The capabilities that a file names for the unit, as an argument of setpriv."""
    (names,) = re.findall(r"^ *CapabilityBoundingSet=(.+)$", (ROOT / path).read_text(), re.M)
    return names.lower().replace("cap_", "+").replace(" ", ",")


def bounded() -> bool:
    """Whether this process may not gain CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE, as in a
    container."""
    (line,) = re.findall(r"^CapBnd:\s*(\w+)$", Path("/proc/self/status").read_text(), re.M)
    needed = 1 << 2 | 1 << 19  # see linux/capability.h
    return int(line, 16) & needed != needed


@pytest.mark.skipif(os.geteuid() != 0, reason="starts a process as another user")
@pytest.mark.skipif(bounded(), reason="lacks CAP_DAC_READ_SEARCH or CAP_SYS_PTRACE")
def test_with_the_drop_in_the_daemon_may_read_page_tables_of_other_users() -> None:
    allowed = ",".join(
        ["-all", *map(bounding_set, ("systemd/sentineld.service.in", "docs/how-to/any-process.md"))]
    )
    with subprocess.Popen(
        ["setpriv", "--reuid", NOBODY, "--clear-groups", "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()  # the process has become cat
        privileged = ("setpriv", "--bounding-set", allowed, "--inh-caps", "-all")
        done = subprocess.run(
            [*privileged, sys.executable, "-c", OPEN_PAGEMAP, str(process.pid)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert "may not read the page tables" not in done.stdout
