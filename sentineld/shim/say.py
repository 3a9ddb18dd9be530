# SPDX-License-Identifier: Apache-2.0
"""Prints the shim's lines on the training's stderr.

The training may have closed or replaced sys.stderr, or the reader of the stream may have gone. A
line that cannot be printed is dropped.
"""

from __future__ import annotations

import io
import sys
from contextlib import suppress


def say(text: str) -> None:
    """Print one line on stderr. Raises nothing except an interrupt (Ctrl+C)."""
    line = f"sentineld.shim: {text}\n"
    stream = getattr(sys, "stderr", None)
    with suppress(Exception):
        file = _file_of(stream) if isinstance(stream, io.TextIOWrapper) else None
        if stream is not None and file is not None:
            stream.flush()  # what the script has written comes first
            file.write(line.encode(stream.encoding, "backslashreplace"))
        elif stream is not None:
            print(line, end="", file=stream, flush=True)


def _file_of(stream: io.TextIOWrapper) -> io.FileIO | None:
    """The unbuffered file below the stream; None: the stream writes to something else.

    A line that could not be written would stay in a buffer. Python flushes the buffer when it
    exits, and if this fails, the exit status is 120.
    """
    buffer: object = stream.buffer
    file = buffer.raw if isinstance(buffer, io.BufferedWriter) else buffer
    return file if isinstance(file, io.FileIO) else None
