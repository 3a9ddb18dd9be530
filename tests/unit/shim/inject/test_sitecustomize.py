# SPDX-License-Identifier: Apache-2.0
"""Python starts with the shim's import hook, and also runs the user's own sitecustomize."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
INJECT = ROOT / "sentineld/shim/inject"


def python(code: str, *path: Path) -> subprocess.CompletedProcess[str]:
    """Run code with these folders on PYTHONPATH."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        cwd="/",
        check=True,
    )


def test_the_shim_waits_for_torch() -> None:
    code = (
        "import sys; from sentineld.shim.torch_import import TorchImportHook\n"
        "print([type(finder) is TorchImportHook for finder in sys.meta_path].count(True))"
    )
    done = python(code, INJECT, ROOT)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_the_folder_is_not_on_the_path_any_more() -> None:
    done = python("import sys; print([p for p in sys.path if 'inject' in p])", INJECT, ROOT)
    assert done.stdout == "[]\n"


def test_the_shadowed_sitecustomize_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = __file__\n")
    code = "import sys, sitecustomize; print(sys.mine, sitecustomize.__file__)"
    done = python(code, INJECT, ROOT, tmp_path)
    assert done.stdout.split() == [str(tmp_path / "sitecustomize.py")] * 2


def test_without_the_package_python_starts_unmanaged_and_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "sentineld"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('half installed')\n")
    done = python("print('trained')", INJECT, tmp_path)
    assert done.stdout == "trained\n"
    assert done.stderr == "sentineld.shim: running unmanaged: half installed\n"
