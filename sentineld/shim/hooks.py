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


class Hooks:
    """The four global hooks.

    Methods, not closures: torch.compile guards what a hook's cells hold, and would compile
    again when a dictionary among them is no longer empty. Of an object it guards only what
    it sees being read, and that ends at is_compiling().
    """

    def __init__(
        self,
        native: Native,
        layers: Layers,
        tensors: Names,
        stepless: Stepless,
        step_ended: Callable[[], None],
    ) -> None:
        """native gets the boundaries, layers gives ids; step_ended is called after a step.

        tensors gets to know the optimizers, stepless the forwards that nobody watches.
        """
        self._native = native
        self._layers = layers
        self._tensors = tensors
        self._stepless = stepless
        self._step_ended = step_ended
        self._ids = layers.by_module
        self._graph_task = torch._C._current_graph_task_id
        self._prehooks: dict[int, Callable[[object], None]] = {}
        self._ends = StepEnds()

    def install(self) -> None:
        """Hook torch's modules and optimizers."""
        torch_module.register_module_forward_pre_hook(self._before_forward)
        torch_module.register_module_forward_hook(self._after_forward, always_call=True)
        torch_optimizer.register_optimizer_step_pre_hook(self._before_optimizer)
        torch_optimizer.register_optimizer_step_post_hook(self._after_optimizer)

    def _before_forward(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or not self._layers.watched:
            return
        layer = self._ids.get(id(module))
        if layer is None:
            layer = self._layers.learn(module)
        if layer:
            self._native.forward(layer)

    def _after_forward(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if not self._layers.watched:
            if self._stepless.looking:
                self._stepless.after_forward(module, output)
            return
        layer = self._ids.get(id(module))
        if not layer:
            return
        if self._graph_task() == -1:  # else backward recomputes it and goes on with backward
            self._native.forward_end()
        node = grad_fn(output)
        if node is not None:
            hook = self._prehooks.get(layer)
            if hook is None:
                hook = self._prehooks[layer] = self._native.backward(layer)
            node.register_prehook(hook)

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._stepless.looking = False
            self._tensors.add_optimizer(optimizer)
            self._native.optimizer()

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling() and self._ends.ended(optimizer):
            self._step_ended()
