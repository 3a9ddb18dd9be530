# SPDX-License-Identifier: Apache-2.0
"""Runs a control server with a few verbs in a thread of the test's process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sentineld.base.errors import SentinelError
from sentineld.control.frames import Message
from sentineld.control.server import Caller, ControlServer, Verb, WithFile, listen
from tests.unit.waiting import PATIENCE_S

LARGE = "x" * (3 << 20)
"""An answer that is larger than a socket's buffer."""


def a_file(text: str) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    os.write(fd, text.encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def refuse(caller: Caller, arguments: Message) -> object:
    raise SentinelError("wrong-state", "not now", "wait")


VERBS: dict[str, Verb] = {
    "echo": lambda caller, arguments: [caller.uid, arguments],
    "file": lambda caller, arguments: WithFile(arguments, a_file("hello")),
    "large": lambda caller, arguments: WithFile(LARGE, a_file("hello")),
    "refuse": refuse,
}


def here(caller: Caller, arguments: Message) -> str:
    return "here"


@contextmanager
def serving(path: Path, verbs: Mapping[str, Verb]) -> Iterator[Path]:
    """A control server at path, in a thread."""
    loop = asyncio.new_event_loop()
    control = ControlServer(verbs, quick={"status": verbs.get("status", here)})

    async def begin() -> None:
        control.listen(listen(path, 0o600, None))

    loop.run_until_complete(begin())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield path
    finally:
        asyncio.run_coroutine_threadsafe(control.close(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
