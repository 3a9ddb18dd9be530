# SPDX-License-Identifier: Apache-2.0
"""The shim waits for torch's import and says in one line why it can't work.

tests/integration/shim/test_start.py starts real trainings.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.shim.shimmed import ROOT

PREFIX = "sentineld.shim: running unmanaged: "


@pytest.fixture
def torch_folder(tmp_path: Path) -> Path:
    """A folder with a torch module that allocates nothing."""
    (tmp_path / "torch.py").write_text("__version__ = '0'\nbefore = True\n")
    return tmp_path


def run(code: str, *path: Path, **environment: str) -> tuple[str, str]:
    """Standard output and standard error of code that runs after `start = Start()`."""
    prelude = (
        "from sentineld.shim.start import Start\nimport sentineld.shim\nsentineld.shim.disarm()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", prelude + "start = Start()\n" + code],
        capture_output=True,
        text=True,
        cwd="/",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT)))} | environment,
        check=True,
    )
    return done.stdout, done.stderr


def test_nothing_happens_before_torch_is_imported(torch_folder: Path) -> None:
    output, errors = run(
        "start.arm(); start.arm(); import json; print(start.managed)",
        torch_folder,
        SENTINELD_SHIM_LIBRARY="/no/such/library.so",
    )
    assert (output, errors) == ("None\n", "")


def test_an_import_of_torch_goes_on_without_the_library(torch_folder: Path) -> None:
    output, errors = run(
        "start.arm(); import torch; print(torch.before, start.managed)",
        torch_folder,
        SENTINELD_SHIM_LIBRARY="/no/such/library.so",
    )
    assert output == "True False\n"
    assert errors.startswith(PREFIX + "/no/such/library.so does not load")
    assert errors.count("\n") == 1


def test_a_torch_that_the_hooks_do_not_fit_runs_unmanaged(torch_folder: Path) -> None:
    output, errors = run("start.arm(); print(start.now())", torch_folder)
    assert output == "False\n"
    assert errors.startswith(PREFIX + "the hooks do not fit this torch: AttributeError: ")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("No module named 'numpy'", "No module named 'numpy'"),
        ("\n\nlibopenblas.so is missing\n\nTry to ...\n", "libopenblas.so is missing"),
        ("", "no message"),
    ],
)
def test_without_numpy_it_says_so(torch_folder: Path, message: str, reason: str) -> None:
    (torch_folder / "numpy.py").write_text(f"raise ImportError({message!r})\n")
    output, errors = run("start.arm(); import torch; print(start.managed)", torch_folder)
    assert output == "False\n"
    hint = "(pip install numpy; Debian: python3-numpy)"
    assert errors == f"{PREFIX}numpy cannot be imported: {reason} {hint}\n"


def test_torch_imported_before_is_too_late(torch_folder: Path) -> None:
    output, errors = run("import torch; start.arm(); print(start.managed)", torch_folder)
    assert (output, errors) == ("False\n", PREFIX + "torch was imported before sentineld.shim\n")


def test_a_disarmed_start_lets_torch_be(torch_folder: Path) -> None:
    output, errors = run(
        "start.arm(); start.disarm(); start.disarm(); import torch; print(start.managed)",
        torch_folder,
    )
    assert (output, errors) == ("None\n", "")


@pytest.mark.parametrize("error", ["ImportError", "OSError"])
def test_without_torch_it_says_so(torch_folder: Path, error: str) -> None:
    (torch_folder / "torch.py").write_text(f"raise {error}('no such disk')\n")
    output, errors = run("start.arm(); print(start.now())", torch_folder)
    assert output == "False\n"
    assert PREFIX + "importing torch failed: no such disk\n" in errors


@pytest.mark.parametrize("size", ["much", "1.5", "-1"])
def test_a_wrong_size_of_the_heap_is_named(torch_folder: Path, size: str) -> None:
    output, errors = run(
        "start.arm(); import torch; print(torch.before, start.managed)",
        torch_folder,
        SENTINELD_SHIM_HEAP_BYTES=size,
    )
    assert output == "True False\n"
    assert errors == f"{PREFIX}SENTINELD_SHIM_HEAP_BYTES is not a number of bytes: '{size}'\n"


def test_a_library_that_cannot_be_built_leaves_torch_alone(torch_folder: Path) -> None:
    # The packaged library is missing. No new library can be stored, because the cache folder is a
    # file and there is no folder for temporary files.
    cache = torch_folder / "cache"
    cache.touch()
    code = (
        "import sentineld.shim.native as native; native.LIBRARY_NAME = 'other.so'\n"
        "import tempfile; tempfile.tempdir = '/no/such/folder'\n"
        "start.arm(); import torch; print(torch.before, start.managed)"
    )
    output, errors = run(code, torch_folder, XDG_CACHE_HOME=str(cache))
    assert output == "True False\n"
    assert errors.startswith(PREFIX + "other.so cannot be built: ")


def test_a_torch_that_allocates_through_the_library_is_managed() -> None:
    pytest.importorskip("torch")
    output, errors = run(
        "start.socket_path = '/no/such/socket'\nstart.arm(); print(start.now(), start.managed)"
    )
    assert (output, errors) == ("True True\n", "")
