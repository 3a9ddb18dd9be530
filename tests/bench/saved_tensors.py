# SPDX-License-Identifier: Apache-2.0
"""Keep activations in files, with PyTorch's hooks for saved tensors.

A user of PyTorch can do this without sentineld: PyTorch's tutorial on these hooks has the same
example (SelfDeletingTempFile). Autograd saves weights too, but weights stay in memory in any case,
so they are not written.
"""

from __future__ import annotations

import tempfile
import weakref
from contextlib import AbstractContextManager
from pathlib import Path

import torch

BYTES_MIN = 1 << 20
"""Smaller tensors stay in memory: a file for each would cost much time and save little memory."""


class _File:
    """A tensor in a file. The file is removed when this object is garbage-collected."""

    def __init__(self, folder: Path, tensor: torch.Tensor) -> None:
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            torch.save(tensor, file)
        self.path = Path(file.name)
        weakref.finalize(self, self.path.unlink)


def saved_in_files(folder: Path) -> AbstractContextManager[None]:
    """A context in which the tensors that autograd saves are written to files in the folder, except
    weights and tensors with less than BYTES_MIN of storage."""

    def pack(tensor: torch.Tensor) -> torch.Tensor | _File:
        small = tensor.untyped_storage().nbytes() < BYTES_MIN
        return tensor if small or _is_weight(tensor) else _File(folder, tensor)

    def unpack(packed: torch.Tensor | _File) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        found: torch.Tensor = torch.load(packed.path, weights_only=True)
        return found

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _is_weight(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a weight or a view of one, such as its transpose."""
    return isinstance(tensor if tensor._base is None else tensor._base, torch.nn.Parameter)
