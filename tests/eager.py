# SPDX-License-Identifier: Apache-2.0
"""Runs a training without importing torch's compiler: eager.py SCRIPT [ARGUMENT...].

torch's optimizers import torch._dynamo, although only torch.compile needs it. torch also imports
torch._meta_registrations, whose functions compute the shapes of a compiled graph's tensors. These
imports take more than half of the time of a short training, so this script puts substitutes into
sys.modules. If a training uses more of torch._dynamo than the two functions that optimizers and
checkpoints call, the real modules are imported.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

DYNAMO, SHAPES = "torch._dynamo", "torch._meta_registrations"


class _Deferred(ModuleType):
    """Replaces torch._dynamo. Using a name that this class lacks imports the real modules."""

    def __getattr__(self, name: str) -> Any:
        # The import of a submodule uses `__path__`. Code that searches all modules also asks for
        # other special names: these requests must not import the real modules.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules.get(DYNAMO) is self:
            for deferred in (DYNAMO, SHAPES):
                del sys.modules[deferred]
            importlib.import_module(SHAPES)
        return getattr(importlib.import_module(DYNAMO), name)

    def disable(self, function: Any = None, *arguments: Any, **options: Any) -> Any:
        """Exclude a function from compilation; without torch.compile, there is nothing to do."""
        if function is None:
            return self.__getattr__("disable")(function, *arguments, **options)
        return function

    def graph_break(self) -> None:
        """End the compiled graph; without torch.compile, there is none."""


def defer_compiler() -> None:
    """Import torch's compiler only if it is used. Call this before torch is imported."""
    sys.modules[DYNAMO] = _Deferred(DYNAMO)
    sys.modules[SHAPES] = ModuleType(SHAPES)


def main() -> None:
    """Run the script as if it had been started directly."""
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    defer_compiler()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
