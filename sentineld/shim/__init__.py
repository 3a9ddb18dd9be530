# SPDX-License-Identifier: Apache-2.0
"""The training side: import this before torch and call load(), or run

    python -m sentineld.shim train.py ARGS...

Training computes bit for bit what it computes without the shim, managed or not.
"""

from __future__ import annotations


def load(socket_path: str | None = None) -> bool:
    """Put the shim in front of torch; call it before torch is imported.

    Args:
        socket_path: the daemon's socket; default SENTINELD_SHIM_SOCKET or
            /run/sentineld/shim.sock. The daemon need not run, now or ever.

    Returns:
        True if this process can be managed; else the reason is on stderr.
    """
    from sentineld.shim.runtime import start

    return start(socket_path)


__all__ = ["load"]
