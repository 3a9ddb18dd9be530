# SPDX-License-Identifier: Apache-2.0
"""Measure how many of the bytes that autograd saves could be computed again by a hook:
`python -m tests.bench.recomputable`.

A hook for saved tensors (torch.autograd.graph.saved_tensors_hooks) gets each tensor that autograd
saves. If an operator of the graph made the tensor, the operator's node may have saved the
operator's inputs. For a few operators without random numbers, this script computes the tensors
again from these inputs and compares them bit for bit. It prints the share of all saved bytes that
could be computed again in this way. docs/explanation/recomputation.md has results.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from tests.bench.models import MODELS

CHAIN_MAX = 5
"""Maximum number of operators that are executed one after the other to compute one tensor again."""

MIB = 1 << 20


class NotExecutedError(Exception):
    """This script does not execute the operator again; the argument is the type of its node."""


class Classified:
    """The tensors that autograd saves in one step, except weights. Views count as their bases."""

    def __init__(self) -> None:
        self._kept: dict[int, torch.Tensor] = {}  # by address of the storage
        self._equal: set[int] = set()
        self._needed: set[int] = set()
        self.unequal: Counter[str] = Counter()
        self.other_bytes: Counter[str] = Counter()

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Classify a tensor when it is saved for the first time; a pack hook."""
        base = tensor if tensor._base is None else tensor._base
        address = base.untyped_storage().data_ptr()
        if isinstance(base, torch.nn.Parameter) or address in self._kept:
            return tensor
        self._kept[address] = base
        size = base.untyped_storage().nbytes()
        if base.grad_fn is None:
            self.other_bytes["made by no operator of the graph"] += size
            return tensor
        name = type(base.grad_fn).__name__
        try:
            with torch.no_grad(), saved_tensors_hooks(lambda one: one, lambda one: one):
                again = self._again(base.grad_fn, CHAIN_MAX)
        except NotExecutedError as error:
            self.other_bytes[f"{name}: {error} is not executed again"] += size
            return tensor
        if torch.equal(again, base.detach()):
            self._equal.add(address)
        else:
            self.unequal[name] += 1
        return tensor

    @property
    def saved_bytes(self) -> int:
        """Bytes of all saved tensors."""
        return sum(one.untyped_storage().nbytes() for one in self._kept.values())

    @property
    def recomputable_bytes(self) -> int:
        """Bytes of the tensors that were computed again with equal results, except those that were
        needed as inputs to compute other tensors again."""
        found = self._equal - self._needed
        return sum(self._kept[address].untyped_storage().nbytes() for address in found)

    def _again(self, node: Any, left: int) -> torch.Tensor:
        """Compute the output of an operator again. left: number of operators that may be executed.
        Raises NotExecutedError."""
        functions: dict[str, Callable[[], torch.Tensor]] = {
            "GeluBackward0": lambda: torch.nn.functional.gelu(
                self._input(node._saved_self), approximate=node._saved_approximate
            ),
            "HardtanhBackward0": lambda: torch.nn.functional.hardtanh(
                self._input(node._saved_self), node._saved_min_val, node._saved_max_val
            ),
            "ReluBackward0": lambda: torch.relu(self._again(node.next_functions[0][0], left - 1)),
            "NativeBatchNormBackward0": lambda: self._normalized(node),
        }
        name = type(node).__name__
        if name not in functions or left == 0:
            raise NotExecutedError(name)
        return functions[name]()

    def _normalized(self, node: Any) -> torch.Tensor:
        if not node._saved_training:
            raise NotExecutedError(type(node).__name__)
        bias = node.next_functions[2][0]
        # Pass no running statistics, because the operator would change them.
        return torch.native_batch_norm(
            self._input(node._saved_input),
            node._saved_weight,
            None if bias is None else bias.variable,
            None,
            None,
            True,
            0.0,
            node._saved_eps,
        )[0]

    def _input(self, tensor: torch.Tensor) -> torch.Tensor:
        self._needed.add(tensor.untyped_storage().data_ptr())
        return tensor


def classify(step: Callable[[], object]) -> Classified:
    """Classify the tensors that one call of a step saves."""
    found = Classified()
    with saved_tensors_hooks(found.pack, lambda one: one):
        step()
    return found


def main() -> None:
    """Classify the tensors of the second step of each chosen model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", choices=list(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for model in arguments.models:
        torch.manual_seed(0)
        step = MODELS[model]()
        step()
        found = classify(step)
        share = found.recomputable_bytes / found.saved_bytes
        print(
            f"{model}: {found.saved_bytes / MIB:.0f} MiB saved, {share:.0%} recomputable, "
            f"{found.unequal.total()} tensors not equal"
        )
        for text, size in found.other_bytes.most_common(5):
            print(f"  {size / MIB:.0f} MiB {text}")


if __name__ == "__main__":
    main()
