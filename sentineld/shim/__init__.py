# SPDX-License-Identifier: Apache-2.0
"""The shim runs in the training process and interposes torch's CPU allocator.

There are four ways to load the shim:

    python -m sentineld.shim train.py ARGS...
    sentinelctl run --fast 20% -- python train.py ARGS...
    SENTINELD_SHIM=1 python train.py ARGS...    with the .pth file that make install writes
    import sentineld.shim                       in the script, before torch

Importing sentineld.shim only installs a hook that runs when torch is imported. SENTINELD_SHIM=0
in the environment disables the shim. Whether or not the process is managed, the training's results
are bit for bit the same as without the shim. The daemon is optional and can start or stop at any
time.
"""

from __future__ import annotations

import os
from typing import Any

from sentineld.shim.placement import Placer, Placing
from sentineld.shim.start import Start

SWITCH_VARIABLE = "SENTINELD_SHIM"

_start = Start()
_placer = Placer(_start.serving)


def arm(socket_path: str | None = None) -> None:
    """Load the shim when torch is imported.

    Args:
        socket_path: the daemon's socket; default SENTINELD_SHIM_SOCKET or
            /run/sentineld/shim.sock.
    """
    if not _disabled():
        _start.socket_path = socket_path or _start.socket_path
        _start.arm()


def load(socket_path: str | None = None) -> bool:
    """Load the shim and import torch now.

    Returns:
        True if this process can be managed. If it cannot, the reason is printed on stderr, unless
        SENTINELD_SHIM=0 disables the shim.
    """
    arm(socket_path)
    return not _disabled() and _start.now()


def disarm() -> None:
    """Cancel arm(): a later import of torch does not load the shim."""
    _start.disarm()


def place(what: Any, tier: str) -> None:
    """Keep tensors on a tier, whatever plan is made for this process.

    The request holds until the tensor's memory is freed, or until place() is called again. It
    applies to the whole storage of a tensor. Gradients and optimizer state are separate tensors,
    which are not placed with a module's parameters. Tensors below 4 KiB are never moved, so place()
    has no effect on them. Without the shim, place() only checks its arguments. Without a daemon,
    the request is kept, and reported when a daemon connects. If place() raises an error, it has
    placed no tensor.

    Args:
        what: a tensor, or a module, all of whose parameters and buffers are placed.
        tier: "fast" or "slow"; "auto" lets the plan decide again.

    Raises:
        TypeError: the argument `what` is neither a tensor nor a module.
        ValueError: the tier is unknown, or a tensor is not in memory that the shim manages.
    """
    _placer.place(what, tier)


def placing(tier: str) -> Placing:
    """A context manager (or decorator) that places tensors allocated in it on a tier; see place().

        with sentineld.shim.placing("slow"):
            table = torch.nn.Embedding(10_000_000, 64)

    Only tensors that the calling thread allocates are placed. Contexts can be nested;
    placing("auto") cancels the request of an outer context. The context does not change the
    placement of tensors that exist already, even if operators in the context write to them.
    """
    return Placing(_placer, tier)


def _disabled() -> bool:
    return os.environ.get(SWITCH_VARIABLE) == "0"


arm()

__all__ = ["arm", "disarm", "load", "place", "placing"]
