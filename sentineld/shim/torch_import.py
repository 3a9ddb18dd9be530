# SPDX-License-Identifier: Apache-2.0
"""Import hook: runs code right before and right after torch's first import."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAME = "torch"


class TorchImportHook(MetaPathFinder):
    """Finder on sys.meta_path that wraps torch's loader.

    The hook stays there until torch's code is executed for the first time: many libraries look for
    torch with importlib.util.find_spec() before anything imports it.
    """

    def __init__(self, before: Callable[[], None], after: Callable[[ModuleType], None]) -> None:
        """before() runs before torch's code is executed, and after(torch) runs afterwards."""
        self._before = before
        self._after = after
        self._finding = False

    def install(self) -> None:
        """Put the hook first on sys.meta_path."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Take the hook off sys.meta_path; repeated calls have no effect."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def execute(self, loader: Loader, module: ModuleType) -> None:
        """Execute torch's code with its own loader. If the hook is installed, remove it, and call
        before() and after() around the execution."""
        if self not in sys.meta_path:
            loader.exec_module(module)
            return
        self.remove()
        self._before()
        loader.exec_module(module)
        self._after(module)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders give for torch, with its loader wrapped."""
        if fullname != NAME or self._finding:
            return None
        self._finding = True
        try:
            spec = importlib.util.find_spec(NAME)
        finally:
            self._finding = False
        if spec is None or spec.loader is None:
            return None
        spec.loader = _HookedLoader(spec.loader, self)
        return spec


class _HookedLoader(Loader):
    """Wraps torch's loader, so that the hook executes the module.

    exec_module() sets the module's __loader__ to torch's own loader.
    """

    def __init__(self, loader: Loader, hook: TorchImportHook) -> None:
        self._loader = loader
        self._hook = hook

    def __getattr__(self, name: str) -> Any:
        # Callers of importlib.util.find_spec() may use further methods of the loader, such as
        # get_filename().
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._hook.execute(self._loader, module)
