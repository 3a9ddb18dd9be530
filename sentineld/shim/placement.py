# SPDX-License-Identifier: Apache-2.0
"""Explicit placement: a script requests a tier for its tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any

from sentineld.shim.native import Native
from sentineld.shim.selftest import TENSOR_BYTES

PLACEMENTS = {"auto": 0, "fast": 1, "slow": 2}
"""The values of protocol.Placement by the name that scripts use. They are repeated here, because
importing protocol.py would load numpy as soon as sentineld.shim is imported. A test compares them
with the enum."""

CPU_ONLY = "only the pages of CPU tensors can be placed"
OTHER_MEMORY = (
    "torch's CPU allocator did not allocate it under the shim; shared, pinned and file-backed"
    " memory and numpy's memory cannot be placed, but a copy can: x = x.clone()"
)


class Placer:
    """Implements sentineld.shim.place() and placing() for this process."""

    def __init__(self, native: Callable[[], Native | None]) -> None:
        """native: returns the shim's library; None if the shim does not serve this process."""
        self._native = native

    def place(self, what: Any, tier: str) -> None:
        """See sentineld.shim.place()."""
        placement = placement_of(tier)
        tensors = list(_tensors(what))
        native = self._native()
        if native is None:
            return
        addresses: dict[int, None] = {}
        for name, tensor in tensors:
            address = _address(name, tensor)
            if not address:
                continue
            if not native.placeable(address):
                raise ValueError(f"{name} is not in the shim's heap: {OTHER_MEMORY}")
            addresses[address] = None
        for address in addresses:
            native.place(address, placement)

    def set_births(self, placement: int) -> int:
        """Set the placement of tensors that this thread allocates; returns the former placement."""
        native = self._native()
        return native.placing(placement) if native is not None else 0


class Placing(ContextDecorator):
    """See sentineld.shim.placing()."""

    def __init__(self, placer: Placer, tier: str) -> None:
        self._placer = placer
        self._placement = placement_of(tier)
        # A stack, because the same object can be entered again before it is left.
        self._before: list[int] = []

    def __enter__(self) -> None:
        self._before.append(self._placer.set_births(self._placement))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._placer.set_births(self._before.pop())


def placement_of(tier: str) -> int:
    """The placement with this name. Raises ValueError."""
    placement = PLACEMENTS.get(tier) if isinstance(tier, str) else None
    if placement is None:
        raise ValueError(f"no tier is named {tier!r}: use 'fast', 'slow' or 'auto'")
    return placement


def _tensors(what: Any) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of a tensor, or of all parameters and buffers of a module. Raises
    TypeError."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(what, torch.Tensor):
        yield from _parts("the tensor", what)
    elif torch is not None and isinstance(what, torch.nn.Module):
        for role, named in (
            ("parameter", what.named_parameters()),
            ("buffer", what.named_buffers()),
        ):
            for name, tensor in named:
                yield from _parts(f"{role} {name}", tensor)
    else:
        raise TypeError(
            f"a {type(what).__name__} cannot be placed: give a tensor or a module; place the"
            " tensors of a list or an optimizer one by one"
        )


def _parts(name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
    """The tensors that hold the data of a tensor: the tensor itself or, if its class wraps other
    tensors (as the classes of quantized and distributed tensors do), these other tensors."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield name, tensor
        return
    for part in flatten()[0]:
        yield from _parts(f"{part} of {name}", getattr(tensor, part))


def _address(name: str, tensor: Any) -> int:
    """The address of the tensor's storage; 0 if the storage is smaller than TENSOR_BYTES. Raises
    ValueError."""
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} is on device {tensor.device}: {CPU_ONLY}")
    try:
        storage = tensor.untyped_storage()
        small = storage.nbytes() < TENSOR_BYTES
        return 0 if small else int(storage.data_ptr())
    except (NotImplementedError, RuntimeError):
        layout = str(tensor.layout).removeprefix("torch.")
        raise ValueError(
            f"{name} has no storage of its own (layout {layout}): place the tensors of which it"
            " consists"
        ) from None
