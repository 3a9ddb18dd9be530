# SPDX-License-Identifier: Apache-2.0
"""Processes of an unprivileged user, which attack the daemon.

The repository may be readable only by root. Therefore the attackers are forked from the test
process, which has already imported all code. Each attacker runs one function, which reports to the
test through a pipe.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

USER = 65534
"""uid of the attackers: nobody."""
OTHER_USER = 65533
GROUP = 65534
"""gid of both users; the control socket belongs to this group."""
PATIENCE_S = 600.0
SCHEDULING = {"group_nice": 0}
"""group_nice: if it is not 0, each attacker and its descendants are scheduled as one group of this
nice level. Without such a group, an attacker with a thousand processes would slow down all other
processes, no matter how the daemon handles the attack."""
_PR_SET_DUMPABLE = 4
_PR_SET_PDEATHSIG = 1

Say = Callable[[Any], None]


def drop_privileges(user: int) -> None:
    """Become the user irrevocably, so that this process is like one that the user has started."""
    os.setgroups([])
    os.setresgid(GROUP, GROUP, GROUP)
    os.setresuid(user, user, user)
    # The change of the uid has made this process non-dumpable. A user's own process is dumpable.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def _form_scheduling_group(nice: int) -> None:
    """Put this process and its descendants into a scheduling group of their own; see sched(7)."""
    os.setsid()
    _set_group_nice(os.getpid(), nice)


def _set_group_nice(pid: int, nice: int) -> None:
    """Set the nice level of a process's scheduling group."""
    # FileNotFoundError: the kernel lacks CONFIG_SCHED_AUTOGROUP
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends. parent: the parent's process ID.

    Call this after drop_privileges(): a change of the uid resets this setting. A forked child does
    not inherit it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)


class Attacker:
    """A process that runs function(say, *arguments) with the uid `user` and then exits.

    say: sends any JSON value to the test, which receives it with heard().
    """

    def __init__(self, function: Callable[..., None], *arguments: Any, user: int = USER) -> None:
        self._reading, writing = os.pipe2(os.O_CLOEXEC)
        self._buffer = b""
        self._ended = False
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _be_attacker(function, arguments, user, writing, parent)
        os.close(writing)

    def heard(self, patience_s: float = PATIENCE_S) -> Any:
        """Return the next value that the process sends. Raises AssertionError if the process fails
        or ends without a value, or if it sends no value within patience_s."""
        deadline_s = time.monotonic() + patience_s
        while b"\n" not in self._buffer:
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"the attacker said nothing for {patience_s} s"
            if not select.select([self._reading], [], [], left_s)[0]:
                continue
            data = os.read(self._reading, 1 << 16)
            assert data, "the attacker ended without a message"
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        kind, value = json.loads(line)
        assert kind == "said", f"the attack failed: {value}"
        return value

    def finish(self, patience_s: float = PATIENCE_S) -> None:
        """Wait for the process's end. Raises AssertionError if its exit status is not 0, or if it
        does not end within patience_s."""
        deadline_s = time.monotonic() + patience_s
        while not self._ended:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ended = True
                assert status == 0, f"status {status}: {self._rest()}"
                return
            assert time.monotonic() < deadline_s, f"the attack lasts over {patience_s} s"
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def close(self) -> None:
        """Kill the process if it runs."""
        if not self._ended:
            if SCHEDULING["group_nice"]:
                # At a high nice level, it can take minutes until a thousand processes have exited.
                _set_group_nice(self.pid, 0)
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._ended = True
        if self._reading >= 0:
            os.close(self._reading)
            self._reading = -1

    def _rest(self) -> str:
        with contextlib.suppress(OSError):
            while data := os.read(self._reading, 1 << 16):
                self._buffer += data
        return self._buffer.decode(errors="replace")


def lasts(end_s: float, done: int) -> bool:
    """Whether an attack goes on. done: the number of its actions so far.

    The attack ends at end_s, a value of time.monotonic(). On a busy machine, it may have done
    nothing by then. In this case, it goes on until its first action, but at most PATIENCE_S / 2
    seconds longer.
    """
    late_s = time.monotonic() - end_s
    return late_s < 0 or (not done and late_s < PATIENCE_S / 2)


def _be_attacker(
    function: Callable[..., None], arguments: tuple[Any, ...], user: int, channel: int, parent: int
) -> None:
    def say(value: Any, kind: str = "said") -> None:
        os.write(channel, json.dumps([kind, value]).encode() + b"\n")

    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        os.setpriority(os.PRIO_PROCESS, 0, 19)
        if SCHEDULING["group_nice"]:
            _form_scheduling_group(SCHEDULING["group_nice"])
        drop_privileges(user)
        die_with_parent(parent)
        function(say, *arguments)
        status = 0
    except BaseException:
        with contextlib.suppress(OSError):
            say(traceback.format_exc(), "failed")
    finally:
        os._exit(status)
