# SPDX-License-Identifier: Apache-2.0
"""The import hook, with a module that stands in for torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from sentineld.shim import torch_import
from sentineld.shim.torch_import import TorchImportHook

NAME = "a_module_for_torch"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the pieces of code that ran, in order: "before", "torch", "after". The module that
    stands in for torch appends "torch" itself."""
    (tmp_path / f"{NAME}.py").write_text("import sys\nsys.ran_for_test.append('torch')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch_import, "NAME", NAME)
    ran: list[str] = []
    monkeypatch.setattr(sys, "ran_for_test", ran, raising=False)
    finders = list(sys.meta_path)
    yield ran
    sys.meta_path[:] = finders
    sys.modules.pop(NAME, None)


def hook(log: list[str]) -> TorchImportHook:
    def after(module: ModuleType) -> None:
        assert module.__name__ == NAME
        log.append("after")

    return TorchImportHook(lambda: log.append("before"), after)


def test_code_runs_right_before_and_right_after_the_first_import(log: list[str]) -> None:
    installed = hook(log)
    installed.install()
    importlib.import_module("json")
    assert log == []
    importlib.import_module(NAME)
    assert log == ["before", "torch", "after"]
    assert installed not in sys.meta_path
    importlib.import_module(NAME)
    importlib.reload(sys.modules[NAME])
    assert log == ["before", "torch", "after", "torch"]


def test_the_module_looks_as_without_the_hook(log: list[str]) -> None:
    plain = importlib.import_module(NAME)
    shown = (plain.__file__, type(plain.__loader__), type(plain.__spec__.loader))  # type: ignore[union-attr]
    del sys.modules[NAME]
    hook(log).install()
    found = importlib.import_module(NAME)
    assert (found.__file__, type(found.__loader__), type(found.__spec__.loader)) == shown  # type: ignore[union-attr]


def test_a_removed_hook_runs_nothing(log: list[str]) -> None:
    installed = hook(log)
    installed.install()
    installed.remove()
    installed.remove()
    importlib.import_module(NAME)
    assert log == ["torch"]


def test_a_module_that_is_not_installed_is_still_an_import_error(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_import, "NAME", "no_such_module_for_torch")
    installed = hook(log)
    installed.install()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_for_torch")
    assert log == []
    assert installed in sys.meta_path


def test_looking_for_the_module_does_not_run_it(log: list[str]) -> None:
    hook(log).install()
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.origin is not None
    assert log == []
