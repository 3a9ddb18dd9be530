# SPDX-License-Identifier: Apache-2.0
"""The import hook, with a module that stands in for torch."""

from __future__ import annotations

import importlib
import importlib.util
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
    importlib.import_module(NAME)
    assert log == ["before", "torch", "after"]


def test_a_spec_is_as_without_the_hook_however_often_it_is_asked_for(log: list[str]) -> None:
    plain = importlib.util.find_spec(NAME)
    installed = hook(log)
    installed.install()
    first, second = (importlib.util.find_spec(NAME) for _ in range(2))
    assert plain is not None
    for spec in (first, second):
        assert spec is not None
        assert spec.origin == plain.origin
        assert spec.loader.get_filename(NAME) == plain.loader.get_filename(NAME)  # type: ignore[union-attr]
    assert installed in sys.meta_path
    importlib.import_module(NAME)
    assert log == ["before", "torch", "after"]
    # Only the module's first execution is hooked, no matter which spec's loader executes it.
    for spec in (first, second):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))  # type: ignore[union-attr, arg-type]
    assert log == ["before", "torch", "after", "torch", "torch"]


def test_a_spec_found_before_the_removal_runs_nothing(log: list[str]) -> None:
    installed = hook(log)
    installed.install()
    spec = importlib.util.find_spec(NAME)
    installed.remove()
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert log == ["torch"]


def test_a_module_may_look_for_itself_while_it_is_loaded(log: list[str], tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.py").write_text(
        "import importlib.util, sys\n"
        "found = importlib.util.find_spec(__name__)\n"
        "assert found is __spec__ and found.loader is __loader__\n"
        "sys.ran_for_test.append('torch')\n"
    )
    hook(log).install()
    importlib.util.find_spec(NAME)
    importlib.import_module(NAME)
    assert log == ["before", "torch", "after"]


def test_after_a_failed_import_the_next_one_is_not_hooked(log: list[str], tmp_path: Path) -> None:
    source = tmp_path / f"{NAME}.py"
    source.write_text("raise ImportError('incomplete')\n")
    hook(log).install()
    with pytest.raises(ImportError, match="incomplete"):
        importlib.import_module(NAME)
    with pytest.raises(ImportError, match="incomplete"):
        importlib.import_module(NAME)
    assert log == ["before"]
