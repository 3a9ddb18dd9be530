# SPDX-License-Identifier: Apache-2.0
"""Acts right before torch is loaded and right after, whoever imports it, whenever that is."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

NAME = "torch"


class Watch(MetaPathFinder):
    """On sys.meta_path until torch is found; it loads nothing itself."""

    def __init__(self, before: Callable[[], None], after: Callable[[ModuleType], None]) -> None:
        """before() runs ahead of torch's first line, after(torch) when it has been loaded."""
        self._before = before
        self._after = after
        self._looking = False

    def begin(self) -> None:
        """Wait for the import."""
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the finders after this one find, with ourselves around its loader."""
        if fullname != NAME or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(NAME)
        finally:
            self._looking = False
        if spec is None or spec.loader is None:
            return None
        self.end()
        spec.loader = _Around(spec.loader, self._before, self._after)
        return spec


class _Around(Loader):
    """A loader and what comes before and after it; the module never learns of us."""

    def __init__(
        self, loader: Loader, before: Callable[[], None], after: Callable[[ModuleType], None]
    ) -> None:
        self._loader = loader
        self._before = before
        self._after = after

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._before()
        self._loader.exec_module(module)
        self._after(module)
