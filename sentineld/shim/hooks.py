# SPDX-License-Identifier: Apache-2.0
"""Hooks into torch that report layer boundaries and the end of each step.

Global forward hooks and grad_fn prehooks do not change the allocation sequence. Full backward hooks
and dispatch modes would change it, so they are not used. Layer boundaries are reported for leaf
modules only. Every hook returns None, because torch would use any other value in place of the
hooked call's arguments or output. While torch.compile traces, the hooks do nothing.
"""

from __future__ import annotations

import heapq
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

from sentineld.shim.names import Names
from sentineld.shim.native import Native
from sentineld.shim.stepless import MissingSteps, grad_fn
from sentineld.shim.steps import Calls, StepEnds

OUTSIDE_LAYER = 0
LAYERS_MAX = 65535  # record.layer has 16 bits

_Kind = tuple[str, str, str]
"""(type of the outermost module, path within it, type of the module)"""


class Layers:
    """Layer ids of modules: leaf modules are numbered from 1 to LAYERS_MAX - 1. All other modules
    have OUTSIDE_LAYER.

    The id of a freed module is given to the next module with the same type and path. So a training
    that creates a module in each step, such as a loss function, has the same ids in all steps.
    """

    def __init__(self, tensors: Names) -> None:
        """tensors: gets each root module from register(), to name the module's tensors."""
        self._tensors = tensors
        self.enabled = False
        """Whether forward and backward boundaries are reported; changes between steps and in forked
        children."""
        self.before_forward: Callable[[], None] | None = None
        """Called before each forward of a layer while an access step's profiler runs; else None."""
        self.names = [""]
        """Module path by layer id, filled when an outermost module is first called."""
        self.by_module: dict[int, int] = {}
        """Layer id by id(module)."""
        self._taken = {""}
        self._references: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._free: dict[_Kind, list[int]] = {}
        """The ids that freed modules had, by _Kind; each list is a heap of heapq."""

    def register(self, root: torch.nn.Module) -> int:
        """Assign ids to root and all modules below it; returns root's id."""
        self._tensors.add_module(root)
        for path, module, is_leaf in _modules(root):
            if id(module) in self.by_module:
                continue
            kind = (type(root).__name__, path, type(module).__name__)
            self._remember(module, self._number(kind) if is_leaf else OUTSIDE_LAYER, kind)
        return self.by_module[id(root)]

    def _number(self, kind: _Kind) -> int:
        """The id of a new leaf module.

        The lowest free id is taken, so that the order in which modules were freed makes no
        difference.
        """
        with suppress(KeyError, IndexError):
            return heapq.heappop(self._free[kind])
        layer = len(self.names)
        if layer >= LAYERS_MAX:
            return OUTSIDE_LAYER
        self.names.append(self._free_name(kind))
        return layer

    def _free_name(self, kind: _Kind) -> str:
        root, path, _ = kind
        names = [path, f"{root}.{path}"] if path else [root]
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

    def _remember(self, module: torch.nn.Module, layer: int, kind: _Kind) -> None:
        key = id(module)

        def forget(_: object) -> None:
            # CPython may give the id() of a freed module to a new module.
            self.by_module.pop(key, None)
            self._references.pop(key, None)
            if layer != OUTSIDE_LAYER:
                heapq.heappush(self._free.setdefault(kind, []), layer)

        self._references[key] = weakref.ref(module, forget)
        self.by_module[key] = layer


def _modules(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, bool]]:
    """Yield (path, module, whether it is a leaf) of root and the modules below it, each once.

    The order and the paths are those of root.named_modules(). That method is not used, because
    classes override it, and because it fails if a module cannot be hashed.
    """
    seen: set[int] = set()
    waiting = [("", root)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        prefix = f"{path}." if path else ""
        try:
            parts = list(module._modules.items())
            below = [(f"{prefix}{n}", m) for n, m in parts if isinstance(m, torch.nn.Module)]
        except Exception:
            parts, below = [], []  # code of the module's class has failed
        # The hooks report no boundaries inside a compiled module, so the compiled module counts as
        # one layer.
        yield path, module, not parts or type(module).__name__ == "OptimizedModule"
        waiting += reversed(below)


class Hooks:
    """The four global hooks.

    The hooks are methods, not closures: torch.compile guards the contents of a closure's cells, and
    recompiles when, for example, an empty dictionary in a cell gets its first entry. For an object,
    torch.compile guards only the attributes that traced code reads. A traced hook reads no
    attribute: it first calls is_compiling(), gets True and returns.

    Modules and outputs can run the script's own code, such as __torch_function__ or a property. If
    that code raises an exception, the forward's hook ends without a boundary.
    """

    def __init__(
        self,
        native: Native,
        layers: Layers,
        tensors: Names,
        missing_steps: MissingSteps,
        step_ended: Callable[[], None],
    ) -> None:
        """Create the hooks without registering them; install() registers them.

        native: receives the boundaries.
        layers: assigns the layer ids.
        tensors: gets each optimizer from the hooks, to name the optimizer's state.
        missing_steps: detects a training that never calls an optimizer's step() (stepless.py). Its
            after_forward() is called after each forward while `missing_steps.active` is true and
            `layers.enabled` is false.
        step_ended: called after each training step.
        """
        self._native = native
        self._layers = layers
        self._tensors = tensors
        self._missing_steps = missing_steps
        self._step_ended = step_ended
        self._ids = layers.by_module
        self._graph_task = torch._C._current_graph_task_id
        self._prehooks: dict[int, Callable[[object], None]] = {}
        self._calls = Calls()
        self._ends = StepEnds()

    def install(self) -> None:
        """Register the hooks with torch."""
        torch_module.register_module_forward_pre_hook(self._before_forward)
        torch_module.register_module_forward_hook(self._after_forward, always_call=True)
        torch_optimizer.register_optimizer_step_pre_hook(self._before_optimizer)
        torch_optimizer.register_optimizer_step_post_hook(self._after_optimizer)

    def _before_forward(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or not self._layers.enabled:
            return
        try:
            layer = self._ids.get(id(module))
            if layer is None:
                layer = self._layers.register(module)
            if layer:
                # Read once: another thread may clear the attribute meanwhile.
                before_forward = self._layers.before_forward
                if before_forward is not None:
                    before_forward()
                self._native.forward(layer)
        except Exception:
            return  # see the class

    def _after_forward(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        try:
            if not self._layers.enabled:
                if self._missing_steps.active:
                    self._missing_steps.after_forward(module, output)
                return
            layer = self._ids.get(id(module))
            if not layer:
                return
            # -1: no backward pass is running. In a backward pass, a forward only recomputes a
            # layer (activation checkpointing), and the end of this forward is not reported.
            if self._graph_task() == -1:
                self._native.forward_end()
            node = grad_fn(output)
            if node is not None:
                hook = self._prehooks.get(layer)
                if hook is None:
                    hook = self._prehooks[layer] = self._native.backward(layer)
                node.register_prehook(hook)
        except Exception:
            return  # see the class

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._missing_steps.active = False
            self._calls.begin(optimizer, sys._getframe(1))
            self._tensors.add_optimizer(optimizer)
            self._native.optimizer()

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._calls.end(optimizer, sys._getframe(1)) and self._ends.ended(optimizer):
            self._step_ended()
