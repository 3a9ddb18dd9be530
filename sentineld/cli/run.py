# SPDX-License-Identifier: Apache-2.0
"""The verb run: starts a command under the shim and attaches its training processes."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

import click

from sentineld import shim
from sentineld.base.errors import SentinelError
from sentineld.base.stderr import say
from sentineld.base.units import FastBudget, parse_bytes
from sentineld.cli.output import Daemon
from sentineld.cli.run_report import ProcessReport
from sentineld.host.memory_limit import LimitedCommand, limited_command
from sentineld.observe.pidfd import parent
from sentineld.policies.registry import managing_policy
from sentineld.shim.client import FAST_VARIABLE

POLL_S = 0.5
UNLIMITED = LimitedCommand(())
SHIM_FOLDER = Path(shim.__file__).parent
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals to forward to the command. SIGINT and SIGQUIT are not forwarded, because a terminal sends
them to the command, too."""


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="[OPTIONS] --",
)
@click.option(
    "--fast",
    help="Fast memory: a share of the peak, such as 20%, or a size, such as 48MiB.  "
    "[default: the daemon's]",
)
@click.option("--policy", help="Policy that makes the plan.  [default: the daemon's]")
@click.option("--limit", help="Memory limit for COMMAND and all its processes, such as 2GiB.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def run(
    daemon: Daemon,
    fast: str | None,
    policy: str | None,
    limit: str | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND under the shim and attach each of its processes that trains a model.

    COMMAND may start Python directly, through torchrun, or from a shell script. Every
    Python process that it starts runs under the shim. Each process is attached
    separately after its first training step. A process that cannot be attached continues
    unmanaged; a warning gives the reason. The exit status is COMMAND's.

    When a process becomes managed, a line on stderr says so. At COMMAND's end, one line for
    each process that trained shows its number of steps, its fast share, its predicted and
    measured step time, the moved bytes and the number of diverged steps. These values were
    read at most half a second before the process ended. The fast share is that of the last
    metering (`sentinelctl meter`).

    With --limit, COMMAND runs in a memory cgroup of its own. systemd creates the cgroup
    if possible; otherwise sentinelctl creates it. If COMMAND needs more memory than the
    limit, the kernel swaps its pages out or kills it.
    """
    if fast is not None:
        FastBudget.parse(fast)
    if policy is not None:
        managing_policy(policy)
    limited = UNLIMITED if limit is None else limited_command(_limit_bytes(limit))
    try:
        status = Launch(daemon, {"fast": fast, "policy": policy}, limited.prefix).run(command)
    finally:
        limited.close()
    sys.exit(status)


class Launch:
    """One command and the sessions of its processes."""

    def __init__(
        self, daemon: Daemon, wanted: Mapping[str, str | None], prefix: tuple[str, ...] = ()
    ) -> None:
        """wanted: the arguments `fast` and `policy` of the verb attach. prefix: a program and its
        arguments, put in front of the command; the program runs the command by exec()."""
        self._daemon = daemon
        self._wanted = wanted
        self._prefix = prefix
        self._tried: set[int] = set()
        self._said: set[str] = set()
        self._reports: dict[int, ProcessReport] = {}

    def run(self, command: Sequence[str]) -> int:
        """Run the command to its end and print the summaries; returns the command's exit status
        (128 + signal if a signal ended it).

        Raises SentinelError if the command cannot be started.
        """
        if self._prefix and shutil.which(command[0]) is None:
            raise _not_started(command[0], os.strerror(errno.ENOENT))
        forward_to = forward_signals()
        try:
            process = subprocess.Popen(
                [*self._prefix, *command], env=environment(os.environ, self._wanted["fast"])
            )
        except OSError as error:
            raise _not_started(command[0], str(error.strerror)) from None
        forward_to(process)
        while True:
            try:
                status = process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                self._poll(process.pid)
            else:
                for report in self._reports.values():
                    say(report.summary())
                return status if status >= 0 else 128 - status

    def _poll(self, root: int) -> None:
        """Follow the sessions of `root` and its descendants. Attach those that have trained a step
        and that were not attached before."""
        try:
            status = self._daemon.ask_briefly("status")
            for session in status["sessions"]:
                pid = session["pid"]
                if pid not in self._reports:
                    if session["step"] == 0 or not descends(pid, root):
                        continue
                    self._reports[pid] = ProcessReport()
                report = self._reports[pid]
                if session["step"] < report.step:
                    self._tried.discard(pid)  # exec(): the process runs another program
                line = report.update(session, status.get("time_ns", 0))
                if line is not None:
                    say(line)
                if session["state"] == "registered" and session["step"] and pid not in self._tried:
                    self._attach(pid)
        except SentinelError as error:
            self._warn(error)

    def _attach(self, pid: int) -> None:
        """Attach a process once, or again if the daemon did not answer or was busy."""
        self._tried.add(pid)
        try:
            self._daemon.ask("attach", pid=pid, **self._wanted)
        except SentinelError as error:
            if error.code in ("daemon-unreachable", "busy"):
                self._tried.discard(pid)
            raise

    def _warn(self, error: SentinelError) -> None:
        text = str(error)
        if text in self._said:
            return
        self._said.add(text)
        if self._reports and error.code == "daemon-unreachable":
            line = f"warning: {text}; the command's processes will reconnect to a new daemon"
        else:
            line = f"warning: {text}; the command continues unmanaged"
        say(line)


def _not_started(program: str, why: str) -> SentinelError:
    return SentinelError(
        "usage", f"cannot start {program}: {why}", "give a program and its arguments after --"
    )


def _limit_bytes(text: str) -> int:
    limit_bytes = parse_bytes(text)
    if limit_bytes <= 0:
        raise SentinelError("usage", "--limit is 0", "give the memory that COMMAND may use")
    return limit_bytes


def environment(base: Mapping[str, str], fast: str | None) -> dict[str, str]:
    """The environment `base`, changed so that every Python process starts under the shim. fast: the
    budget with which the processes will be attached; None: the daemon's default."""
    path = [str(SHIM_FOLDER / "inject"), str(SHIM_FOLDER.parent.parent)]
    if base.get("PYTHONPATH"):
        path.append(base["PYTHONPATH"])
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(path),
        shim.SWITCH_VARIABLE: "1",
        FAST_VARIABLE: fast or "",
    }


def forward_signals() -> Callable[[subprocess.Popen[bytes]], None]:
    """From now on, forward SIGNALS to a child process instead of acting on them.

    SIGINT and SIGQUIT have no effect on this process any more. Signals that this process already
    ignores, for example under nohup, stay ignored, also in the child.

    Returns a function to call with the child as soon as the child has been started. The function
    also forwards the signals that have arrived in the meantime.
    """
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def send(number: int, frame: FrameType | None) -> None:
        if started:
            started[0].send_signal(number)
        else:
            early.append(number)

    def stay(number: int, frame: FrameType | None) -> None:
        """Ignore the signal: the terminal has sent it to the child, too."""

    for numbers, handler in ((SIGNALS, send), ((signal.SIGINT, signal.SIGQUIT), stay)):
        for number in numbers:
            # The command would inherit SIG_IGN. It does not inherit a handler: exec() replaces the
            # handler by the default action. So stay() is set instead of SIG_IGN.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)

    def forward_to(process: subprocess.Popen[bytes]) -> None:
        started.append(process)
        for number in early:
            process.send_signal(number)

    return forward_to


def descends(pid: int, root: int) -> bool:
    """Whether `pid` is `root` or its descendant. All processes between the two must be alive."""
    while pid > 1 and pid != root:
        pid = parent(pid)
    return pid == root
