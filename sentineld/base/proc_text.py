# SPDX-License-Identifier: Apache-2.0
"""Reads text files of /proc that contain names which users choose: of programs, files and cgroups.

In these files, the kernel escapes the newline, but no other character that Python takes for the end
of a line. So a name may contain a carriage return or U+2028. Path.read_text() would convert a
carriage return to a newline, and str.splitlines() would split a line there. A user could then write
lines of their own into the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TextIO


def open_proc_text(path: Path, errors: str = "replace") -> TextIO:
    """Open a file whose lines end only at newlines, also while it is iterated. errors: how bytes
    that are not UTF-8 are decoded; see open(). Raises OSError."""
    return path.open(encoding="utf-8", errors=errors, newline="\n")


def read_proc_text(path: Path, errors: str = "replace") -> str:
    """The text of a file, without any conversion of its line ends. Split it at "\\n" only. errors:
    see open_proc_text(). Raises OSError."""
    with open_proc_text(path, errors) as file:
        return file.read()
