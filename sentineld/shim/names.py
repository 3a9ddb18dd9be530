# SPDX-License-Identifier: Apache-2.0
"""Names of parameters, buffers, gradients and optimizer state.

The names are collected after each access step. Modules and optimizers are held by weak
references, so a model that the script deletes is freed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch

from sentineld.base.text import json_end
from sentineld.model.protocol import TENSOR_BYTES_MIN

NAMES_MAX = 20_000
"""Maximum number of names. All names are sent in one message, and the daemon accepts messages up to
5 MiB."""
NAME_BYTES_MAX = 200
"""Maximum size of one name, encoded as JSON."""

Row = tuple[int, str, str]
"""(address of the storage, role, name); sentineld.model.records.TensorName lists the roles."""


class Names:
    """Collects the outermost modules and the optimizers, and gives their tensors names."""

    def __init__(self) -> None:
        # By id(), because a class may make its objects unhashable; in the order of the calls of
        # add_module() and add_optimizer().
        self._roots: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._optimizers: dict[int, weakref.ref[Any]] = {}

    def add_module(self, root: torch.nn.Module) -> None:
        """Add an outermost module; called at the module's first forward."""
        key = id(root)
        self._roots[key] = weakref.ref(root, lambda _: self._roots.pop(key, None))

    def add_optimizer(self, optimizer: Any) -> None:
        """Add an optimizer; adding it again has no effect."""
        key = id(optimizer)
        if key not in self._optimizers:
            forget = self._optimizers.pop
            self._optimizers[key] = weakref.ref(optimizer, lambda _: forget(key, None))

    def rows(self) -> list[Row]:
        """Return one row per storage of at least TENSOR_BYTES_MIN bytes; at most NAMES_MAX rows."""
        found: dict[int, Row] = {}
        for tensor, role, name in self._tensors():
            address = _address(tensor)
            if address:
                found.setdefault(address, (address, role, json_end(name, NAME_BYTES_MAX)))
            if len(found) == NAMES_MAX:
                break
        return list(found.values())

    def _tensors(self) -> Iterator[tuple[torch.Tensor, str, str]]:
        """Yield (tensor, role, name).

        Parameters and buffers come before gradients and optimizer state, because rows() keeps the
        first name that an address gets.
        """
        names: dict[int, str] = {}
        taken: set[str] = set()
        gradients: list[tuple[torch.Tensor, str, str]] = []
        for reference in list(self._roots.values()):
            root = reference()
            if root is None:
                continue
            try:
                named = (
                    ("parameter", list(root.named_parameters())),
                    ("buffer", list(root.named_buffers())),
                )
            except Exception:
                continue  # for example, a module in root cannot be hashed
            for role, tensors in named:
                for path, tensor in tensors:
                    if id(tensor) in names:
                        continue
                    name = path if path not in taken else f"{type(root).__name__}.{path}"
                    taken.add(name)
                    names[id(tensor)] = name
                    yield tensor, role, name
                    if role == "parameter" and tensor.grad is not None:
                        gradients.append((tensor.grad, "gradient", name))
        yield from gradients
        for weak in list(self._optimizers.values()):
            optimizer = weak()
            if optimizer is None:
                continue
            for parameter, state in list(optimizer.state.items()):
                if not isinstance(state, dict):
                    continue
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        name = names.get(id(parameter), "a parameter outside of the modules")
                        yield value, "optimizer", f"{name} {key}"


def _address(tensor: torch.Tensor) -> int:
    """The address of the tensor's storage; 0 if the storage is smaller than TENSOR_BYTES_MIN, or if
    the tensor has no storage of its own, such as a sparse tensor."""
    try:
        storage = tensor.untyped_storage()
        return int(storage.data_ptr()) if storage.nbytes() >= TENSOR_BYTES_MIN else 0
    except (NotImplementedError, RuntimeError, ValueError):  # ValueError: not initialized (lazy)
        return 0
