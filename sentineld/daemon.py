# SPDX-License-Identifier: Apache-2.0
"""The daemon's main module: connects sockets, sessions, the machine and metrics.

The module holds no logic of its own.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import logging
import os
import resource
import signal
import sys
import time
from pathlib import Path

import click

from sentineld import __version__
from sentineld.base.log_events import LogEvent, about
from sentineld.base.log_limit import LogLimit
from sentineld.config import Config
from sentineld.control.frames import Message
from sentineld.control.server import Caller, ControlServer, listen, require_no_daemon
from sentineld.entry import run_command
from sentineld.machine.machine import Machine
from sentineld.observe.shim_server import ShimServer
from sentineld.service.collect import take_snapshot
from sentineld.service.configuration import Reloader, read_config
from sentineld.service.journal import JournalHandler, stderr_is_journal
from sentineld.service.metrics import collector
from sentineld.service.metrics_server import MetricsServer
from sentineld.service.notify import notify, watchdog_interval_s
from sentineld.service.sessions import Sessions
from sentineld.service.usage import usage
from sentineld.session.state import StateFiles

log = logging.getLogger("sentineld")

HEARTBEAT_S = 0.25
SWITCH_S = 0.0005
"""Longest time for which a thread keeps Python's GIL while other threads wait for it. With Python's
default, 5 ms, another thread would wait 5 ms for the GIL after each of its system calls while the
event loop is busy."""
DESCRIPTORS_MAX = 16384
"""The daemon raises its soft limit on open descriptors to this number if the hard limit permits it.
LimitNOFILE in the systemd unit has the same value."""
MMAP_THRESHOLD_BYTES = 512 << 10
"""malloc() maps each block of this size or more separately, and free() returns it to the kernel. By
default glibc raises the threshold to the size of the largest block freed so far. After a few large
messages, malloc() would then take blocks of their size from the threads' heaps, which keep freed
memory."""
M_MMAP_THRESHOLD = -3  # malloc.h


async def run(config: Config, path: Path | None, tiers: str | None) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP reloads the configuration.

    path, tiers: the arguments of the read_config() call that returned `config`; reloads use them.
    """
    loop = asyncio.get_running_loop()
    stop, hang_up = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, hang_up.set)

    # Check for another daemon before the machine is probed: probing can take seconds, and would
    # disturb that daemon.
    for path_used in (config.control_socket, config.shim_socket):
        require_no_daemon(Path(path_used))
    machine = await asyncio.to_thread(Machine.probe, config)
    reloader = Reloader(machine, path, tiers)
    sessions = Sessions(machine, StateFiles(Path(config.state_dir)))

    metrics: MetricsServer | None = None
    if config.metrics_port:
        metrics = MetricsServer(
            config.metrics_address,
            config.metrics_port,
            collector(lambda: take_snapshot(machine, sessions)),
        )

    def status(caller: Caller, _: Message) -> object:
        described = machine.describe()
        problem = metrics.problem if metrics is not None else None
        if problem is not None:
            described["problems"].append(str(problem))
        described["problems"] += reloader.problems
        return {
            "version": __version__,
            "pid": os.getpid(),
            **usage(),
            **described,
            "metrics_problem": "" if problem is None else problem.message,
            "sessions": sessions.status(caller.uid),
        }

    control = ControlServer(
        {
            "attach": sessions.attach,
            "detach": sessions.detach,
            "meter": sessions.meter,
            "record": sessions.record,
            "tensors": sessions.tensors,
            "residency": sessions.residency,
            "plan": sessions.plan,
            "plan-file": sessions.plan_file,
        },
        quick={"status": status},
    )
    control.listen(listen(Path(config.control_socket), 0o660, config.socket_group))
    # Every user may connect, so that every user can train under the shim. observe/peer.py
    # identifies the sender of a hello, which is a shim's first message.
    shims = ShimServer(listen(Path(config.shim_socket), 0o666, None), sessions.hello)
    tasks = [
        asyncio.create_task(_beat(sessions)),
        asyncio.create_task(_reload_on(hang_up, reloader)),
    ]
    notify("READY=1")
    log.info(
        "sentineld %s serves %s", __version__, config.control_socket, extra=about(LogEvent.STARTED)
    )
    try:
        await stop.wait()
    finally:
        notify("STOPPING=1")
        for task in tasks:
            task.cancel()
        shims.close()
        await control.close()
        if metrics is not None:
            metrics.close()
        sessions.close()
        machine.close()


async def _beat(sessions: Sessions) -> None:
    """Send heartbeats to the shims and to the service manager."""
    interval_s = watchdog_interval_s()
    fed_s = 0.0
    while True:
        sessions.beat()
        if interval_s is not None and time.monotonic() - fed_s >= interval_s / 2:
            fed_s = time.monotonic()
            notify(f"WATCHDOG=1\nSTATUS={len(sessions.all())} sessions")
        await asyncio.sleep(HEARTBEAT_S)


async def _reload_on(hang_up: asyncio.Event, reloader: Reloader) -> None:
    """Reload the configuration each time `hang_up` is set."""
    while True:
        await hang_up.wait()
        hang_up.clear()
        await asyncio.to_thread(reloader.reload)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sentineld")
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="Configuration file.  [default: /etc/sentineld/config.toml]",
)
@click.option(
    "--tiers",
    metavar="KIND",
    help="Tiers on a machine with one kind of memory. emulated:PRESET emulates two tiers (PRESET: "
    "cxl, cxl-4k, remote, optane or dram). paged[:DIRECTORY] keeps the pages that exceed a "
    "session's budget in a file on a local disk. swap keeps processes without the shim within "
    "their budgets, with the kernel's swap.  [default DIRECTORY: the state directory]",
)
@click.option("--check", is_flag=True, help="Check the configuration, then exit.")
def sentineld(path: Path | None, tiers: str | None, check: bool) -> None:
    """Tensor-aware memory tiering for deep-learning training."""
    config = read_config(path, tiers)
    if check:
        return
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        handlers=[JournalHandler()] if stderr_is_journal() else None,
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(LogLimit())
    sys.setswitchinterval(SWITCH_S)
    _raise_descriptor_limit()
    _fix_mmap_threshold()
    asyncio.run(run(config, path, tiers))


def _raise_descriptor_limit() -> None:
    """Raise the soft limit on open descriptors. The default is often 1024, because select() does
    not support higher descriptor numbers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def _fix_mmap_threshold() -> None:
    """Set malloc's mmap threshold to a fixed value, if the C library has mallopt()."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)


def main() -> None:
    """Entry point of the command sentineld."""
    # ctypes and shared mappings can crash the interpreter; print the Python stack if that happens.
    faulthandler.enable()
    run_command(sentineld)


if __name__ == "__main__":
    main()
