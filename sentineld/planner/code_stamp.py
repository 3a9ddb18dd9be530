# SPDX-License-Identifier: Apache-2.0
"""Tells whether the files of the package have been replaced, for example by an upgrade."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import sentineld


def code_stamp(package: Path = Path(sentineld.__file__).parent) -> int:
    """A number that differs after a Python file of the package has been added, removed or replaced.
    It can be compared only with numbers of the same process. Takes milliseconds."""
    # Inode numbers would tell more, but can change by themselves on overlayfs.
    facts = []
    for folder, _, names in os.walk(package):
        for name in names:
            if name.endswith(".py"):
                # An upgrade can remove files and folders at any moment; os.walk() ignores this.
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(os.path.join(folder, name))
                    facts.append((folder, name, status.st_size, status.st_mtime_ns))
    return hash(tuple(sorted(facts)))


AT_START = code_stamp()
"""The stamp of the files that this process has imported."""
