# SPDX-License-Identifier: Apache-2.0
"""Checks of the daemon and of the shim's C library."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sentineld.shim
from sentineld.base.errors import SentinelError
from sentineld.control.client import request
from sentineld.doctor.findings import Finding, Status, System
from sentineld.shim.native import LIBRARY_NAME, LIBRARY_VARIABLE

ANSWER_TIMEOUT_S = 10.0
METRICS_FIX = "stop the program that uses the port, or set metrics_port"


def ask(socket: Path) -> Mapping[str, Any] | SentinelError:
    """The daemon's answer to the verb `status`, or an error that says why there is no answer."""
    try:
        answer: Mapping[str, Any] = request(socket, "status", ANSWER_TIMEOUT_S)
    except SentinelError as error:
        return error
    return answer


def daemon(system: System) -> Finding:
    """Whether the daemon answers."""
    answer = system.daemon
    if isinstance(answer, SentinelError):
        return Finding("daemon", Status.FAIL, answer.message, answer.hint, answer.code)
    cause = f"sentineld {answer['version']}, pid {answer['pid']}, answers"
    problem = answer.get("metrics_problem")
    if problem:
        return Finding("daemon", Status.WARN, f"{cause}, but {problem}", METRICS_FIX)
    return Finding("daemon", Status.OK, cause)


def shim_library(_: System) -> Finding:
    """Whether the shim's C library exists or can be built."""
    named = os.environ.get(LIBRARY_VARIABLE)
    folder = Path(sentineld.shim.__file__).parent
    library = Path(named) if named else folder / LIBRARY_NAME
    if library.is_file():
        return Finding("shim", Status.OK, str(library))
    if not named and (folder / "native/Makefile").is_file() and shutil.which("cc"):
        return Finding("shim", Status.OK, f"{LIBRARY_NAME} is built on first use")
    return Finding("shim", Status.FAIL, f"{library} does not exist", "make shim, or make install")
