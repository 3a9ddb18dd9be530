# SPDX-License-Identifier: Apache-2.0
"""Suppresses the messages that torch prints on stderr when a profiler runs.

Kineto reports every start and stop, and c10 warns of each block that was allocated before the
profiler started. Both are expected in an access step.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

_LEVELS = (
    ("libc10.so", "FLAGS_caffe2_log_level", "TORCH_CPP_LOG_LEVEL", 2),
    ("libtorch_cpu.so", "_ZN9libkineto6Logger14severityLevel_E", "KINETO_LOG_LEVEL", 6),
)
"""For each logger: library, symbol of the integer that holds its level, environment variable with
which a user chooses the level, and the level that hides the messages. c10's level 2 still shows
errors. Kineto logs the starts and stops of profiles at its highest level. A level that hides them,
such as 6, therefore hides all of Kineto's messages."""


class QuietLoggers:
    """Raises the loggers' levels when it is created; restore() resets them.

    A level is not changed if the user has chosen it, or if this version of torch does not have its
    symbol.
    """

    def __init__(self) -> None:
        self._before: list[tuple[ctypes.c_int, int]] = []
        folder = Path(torch.__file__).parent / "lib"
        for library, symbol, variable, quiet in _LEVELS:
            if variable in os.environ:
                continue
            try:
                level = ctypes.c_int.in_dll(ctypes.CDLL(str(folder / library)), symbol)
            except (OSError, ValueError):
                continue
            self._before.append((level, level.value))
            level.value = max(level.value, quiet)

    def restore(self) -> None:
        """Set the levels to their earlier values; repeated calls have no effect."""
        for level, value in self._before:
            level.value = value
        self._before = []
