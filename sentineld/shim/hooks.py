# SPDX-License-Identifier: Apache-2.0
"""Hooks into torch: which layer runs, when a step ends.

Global forward hooks and grad_fn prehooks leave the allocation sequence as it
is (full backward hooks and dispatch modes do not). Only leaf modules make
boundaries. Every hook returns None, or torch would take its value for an
output, and none runs while torch.compile traces.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

from sentineld.shim.names import Names
from sentineld.shim.native import Native
from sentineld.shim.stepless import Stepless, grad_fn
from sentineld.shim.steps import StepEnds

OUTSIDE_LAYER = 0
LAYERS_MAX = 65535  # record.layer has 16 bits


class Layers:
    """Layer ids by module: leaf modules count from 1, all others are OUTSIDE_LAYER.

    names: the module path by layer id, found when the outermost module is first called.
    watched: whether anyone looks at boundaries; it changes between steps only.
    """

    def __init__(self, tensors: Names) -> None:
        """tensors: gets to know the outermost modules, too."""
        self._tensors = tensors
        self.watched = False
        self.names = [""]
        self.by_module: dict[int, int] = {}
        self._taken = {""}
        self._references: dict[int, weakref.ref[torch.nn.Module]] = {}

    def learn(self, root: torch.nn.Module) -> int:
        """Give ids to root and all modules below it; returns root's."""
        self._tensors.add_module(root)
        for path, module in root.named_modules():
            if id(module) in self.by_module:
                continue
            layer = OUTSIDE_LAYER
            if _is_leaf(module) and len(self.names) < LAYERS_MAX:
                layer = len(self.names)
                self.names.append(self._free_name(path, root))
            self._remember(module, layer)
        return self.by_module[id(root)]

    def _free_name(self, path: str, root: torch.nn.Module) -> str:
        kind = type(root).__name__
        names = [path, f"{kind}.{path}"] if path else [kind]
        for name in names:
            if name not in self._taken:
                break
        else:
            count = 2
            while f"{names[-1]}#{count}" in self._taken:
                count += 1
            name = f"{names[-1]}#{count}"
        self._taken.add(name)
        return name

    def _remember(self, module: torch.nn.Module, layer: int) -> None:
        key = id(module)

        def forget(_: object) -> None:
            # The id may soon be another module's.
            self.by_module.pop(key, None)
            self._references.pop(key, None)

        self._references[key] = weakref.ref(module, forget)
        self.by_module[key] = layer


def _is_leaf(module: torch.nn.Module) -> bool:
    # A compiled module shows no inner calls: it is one layer.
    return not module._modules or type(module).__name__ == "OptimizedModule"


def install(
    native: Native,
    layers: Layers,
    tensors: Names,
    stepless: Stepless,
    step_ended: Callable[[], None],
) -> None:
    """Hook torch's modules and optimizers.

    Args:
        native: gets the boundaries.
        layers: gives ids to layers.
        tensors: gets to know the optimizers.
        stepless: sees the forwards that nobody watches.
        step_ended: is called when a training step has ended.
    """
    ids = layers.by_module
    forward, forward_end = native.forward, native.forward_end
    graph_task = torch._C._current_graph_task_id
    prehooks: dict[int, Callable[[object], None]] = {}
    ends = StepEnds()

    def before_forward(module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or not layers.watched:
            return
        layer = ids.get(id(module))
        if layer is None:
            layer = layers.learn(module)
        if layer:
            forward(layer)

    def after_forward(module: torch.nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if not layers.watched:
            if stepless.looking:
                stepless.after_forward(module, output)
            return
        layer = ids.get(id(module))
        if not layer:
            return
        if graph_task() == -1:  # else backward recomputes it and goes on with backward
            forward_end()
        node = grad_fn(output)
        if node is not None:
            hook = prehooks.get(layer)
            if hook is None:
                hook = prehooks[layer] = native.backward(layer)
            node.register_prehook(hook)

    def before_optimizer(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            stepless.looking = False
            tensors.add_optimizer(optimizer)
            native.optimizer()

    def after_optimizer(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling() and ends.ended(optimizer):
            step_ended()

    torch_module.register_module_forward_pre_hook(before_forward)
    torch_module.register_module_forward_hook(after_forward, always_call=True)
    torch_optimizer.register_optimizer_step_pre_hook(before_optimizer)
    torch_optimizer.register_optimizer_step_post_hook(after_optimizer)
