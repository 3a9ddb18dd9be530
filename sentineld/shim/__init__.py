# SPDX-License-Identifier: Apache-2.0
"""The training side. It gets in front of torch by any of these:

    python -m sentineld.shim train.py ARGS...
    sentinelctl run --fast 20% -- python train.py ARGS...
    SENTINELD_SHIM=1 python train.py ARGS...    with the .pth file that make install writes
    import sentineld.shim                       in the script, ahead of torch

Importing it waits for torch's import and does nothing without it; SENTINELD_SHIM=0 in the
environment keeps it out altogether. Training computes bit for bit what it computes without
the shim, managed or not. The daemon need not run, now or ever.
"""

from __future__ import annotations

import os

from sentineld.shim.start import Start

SWITCH_VARIABLE = "SENTINELD_SHIM"

_start = Start()


def arm(socket_path: str | None = None) -> None:
    """Get in front of torch when it is imported.

    Args:
        socket_path: the daemon's socket; default SENTINELD_SHIM_SOCKET or
            /run/sentineld/shim.sock.
    """
    if not _kept_out():
        _start.socket_path = socket_path or _start.socket_path
        _start.arm()


def load(socket_path: str | None = None) -> bool:
    """The same, and import torch now.

    Returns:
        True if this process can be managed; else the reason is on stderr.
    """
    arm(socket_path)
    return not _kept_out() and _start.now()


def disarm() -> None:
    """Leave a torch alone that is imported from now on."""
    _start.disarm()


def _kept_out() -> bool:
    return os.environ.get(SWITCH_VARIABLE) == "0"


arm()

__all__ = ["arm", "disarm", "load"]
