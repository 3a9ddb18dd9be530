# SPDX-License-Identifier: Apache-2.0
"""Programs start under the shim, even where the shim cannot work."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.shim.daemon_side import EAGER, PAGE, ROOT, TRAIN
from tests.sentinelctl import SENTINELCTL

pytest.importorskip("torch")


def python(
    *arguments: str, cwd: Path = ROOT, within: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """within: a command to put before Python, such as prlimit with its options."""
    return subprocess.run(
        [*within, sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=300,
        env=os.environ
        | {"SENTINELD_SHIM_SOCKET": "/nonexistent", "PYTHONPATH": str(ROOT)}
        | environment,
    )


def run(
    *arguments: str, cwd: Path = ROOT, within: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    shimmed = ("-m", "sentineld.shim", *arguments)
    return python(*shimmed, cwd=cwd, within=within, **environment)


THREE_STEPS = (str(EAGER), str(TRAIN), "cnn", "3")
"""The arguments of Python that train three steps and print their losses."""


@functools.cache
def plain() -> str:
    """The losses of THREE_STEPS without the shim."""
    return python(*THREE_STEPS).stdout


SHOW_MAIN = "import sys; print(__name__, sys.argv, repr(sys.path[0]))"


def test_a_script_sees_the_same_argv_and_paths_as_under_python(tmp_path: Path) -> None:
    script = tmp_path / "tell.py"
    script.write_text(SHOW_MAIN + "; print(__file__); sys.exit(7)")
    done = run(str(script), "--socket", "x", cwd=tmp_path)
    plain = subprocess.run(
        [sys.executable, str(script), "--socket", "x"], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode, done.stderr) == (plain.stdout, 7, "")


def test_modules_and_commands_run_as_main(tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text(SHOW_MAIN)
    module = run("-m", "tell", "a", cwd=tmp_path)
    assert module.stdout.startswith("__main__"), module.stderr
    assert "'a']" in module.stdout
    command = run("-c", SHOW_MAIN, "b", cwd=tmp_path)
    assert command.stdout == "__main__ ['-c', 'b'] ''\n"


SHOW_ANNOTATIONS = "def f(x: int) -> list[str]: pass\nprint(f.__annotations__)"


def test_a_program_has_its_own_future_imports(tmp_path: Path) -> None:
    script = tmp_path / "annotated.py"
    for program in (SHOW_ANNOTATIONS, f"from __future__ import annotations\n{SHOW_ANNOTATIONS}"):
        script.write_text(program)
        for arguments in ((str(script),), ("-c", program), ("-m", "annotated")):
            done = run(*arguments, cwd=tmp_path)
            assert done.stdout == python(*arguments, cwd=tmp_path).stdout, done.stderr
            assert done.stdout.startswith("{'x': "), done.stderr


@pytest.mark.parametrize("arguments", [(), ("-m",), ("--socket",), ("/no/such/script.py",)])
def test_usage_errors_are_one_line(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"SENTINELD_SHIM_LIBRARY": "/no/such/library.so"}, "does not load"),
        ({"SENTINELD_SHIM_HEAP_BYTES": str(1 << 47)}, "cannot reserve the shim's heap"),
    ],
)
def test_training_runs_unmanaged_if_the_shim_cannot_start(
    environment: dict[str, str], reason: str
) -> None:
    done = run(*THREE_STEPS, **environment)
    assert done.stdout == plain()
    assert done.stderr.startswith("sentineld.shim: running unmanaged: ")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_passthrough_if_torch_is_imported_first() -> None:
    code = "import torch, sentineld.shim; print(sentineld.shim.load(), torch.ones(5000).sum())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout == "False tensor(5000.)\n"
    assert "torch was imported before sentineld.shim" in done.stderr


PAGE_OFFSET = (
    "import torch; tensors = [torch.empty(5000) for _ in range(2)];"
    f" print(max(tensor.data_ptr() % {PAGE} for tensor in tensors))"
)
"""Prints 0 if the shim serves tensors: all of its tensors begin at page boundaries. A tensor from
malloc() may begin at a page boundary by chance, but two consecutive tensors of this size cannot."""


def test_importing_the_shim_before_torch_is_enough() -> None:
    for code in (
        f"import sentineld.shim; {PAGE_OFFSET}",
        f"import sentineld.shim, sentineld.shim; sentineld.shim.arm(); {PAGE_OFFSET}",
        f"import sentineld.shim; print(sentineld.shim.load()); {PAGE_OFFSET}",
    ):
        done = python("-c", code)
        assert done.stdout.splitlines()[-1] == "0", done.stderr
        assert done.stderr == ""


def test_torchs_module_attributes_are_unchanged() -> None:
    show = (
        "import torch, importlib.util as u; s = torch.__spec__;"
        "print(type(s.loader).__name__, type(torch.__loader__).__name__, s.origin, torch.__file__)"
    )
    assert python("-c", f"import sentineld.shim; {show}").stdout == python("-c", show).stdout


def test_the_shim_does_not_import_torch() -> None:
    code = "import sentineld.shim, sys; print('torch' in sys.modules, 'ctypes.util' in sys.modules)"
    done = python("-c", code)
    assert done.stdout.startswith("False"), done.stderr
    # If torch is missing, its import raises the same error as without the shim.
    missing = "import sys; sys.path[:] = []; sys.path_importer_cache.clear(); import torch"
    done = python("-S", "-c", f"import sentineld.shim; {missing}")
    assert "ModuleNotFoundError: No module named 'torch'" in done.stderr
    assert "sentineld.shim:" not in done.stderr


def test_the_environment_disables_the_shim() -> None:
    code = f"import sentineld.shim; print(sentineld.shim.load()); {PAGE_OFFSET}"
    done = python("-c", code, SENTINELD_SHIM="0")
    loaded, alignment = done.stdout.split()
    assert loaded == "False"
    assert alignment != "0"
    assert done.stderr == ""


def sentinelctl_run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    run = ("--socket", "/nonexistent", "run", "--")
    return python(*SENTINELCTL[1:], *run, *command, **environment)


def test_run_arms_the_shim_in_every_python_and_keeps_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = 'mine'\n")
    show = "print(sys.mine, sys.argv, [p for p in sys.path if 'inject' in p])"
    code = f"import sys; {show}; {PAGE_OFFSET}"
    shell = '"$0" -c "$1" --fast x; exit 7'
    done = sentinelctl_run("sh", "-c", shell, sys.executable, code, PYTHONPATH=f"{ROOT}:{tmp_path}")
    assert done.stdout.splitlines() == ["mine ['-c', '--fast', 'x'] []", "0"], done.stderr
    assert done.returncode == 7
    lines = done.stderr.splitlines()
    assert len(lines) <= 1  # one warning, even if the daemon is contacted more than once
    assert all(line.startswith("warning: ") and "continues unmanaged" in line for line in lines)


def test_run_reports_a_command_that_does_not_start() -> None:
    done = sentinelctl_run("/no/such/program")
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot start /no/such/program: ")
    assert done.stderr.count("\n") == 1


def test_run_forwards_signals_to_the_command() -> None:
    code = "import os, signal, sys; os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
    assert sentinelctl_run(sys.executable, "-c", code).returncode == 128 + 15


def test_too_large_allocations_raise_torchs_own_error() -> None:
    code = """
import torch
try:
    torch.empty(1 << 50)
except RuntimeError as error:
    print(type(error).__name__, "allocate" in str(error))
print(torch.empty(0).data_ptr(), torch.ones(100000).sum().item())
print(torch.empty(5000).data_ptr() % PAGE)
""".replace("PAGE", str(PAGE))
    done = run("-c", code)
    assert done.stdout == "RuntimeError True\n0 100000.0\n0\n", done.stderr


def test_torch_compile_keeps_one_graph() -> None:
    code = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    compiled(torch.ones(64, 64)).sum().backward()
    optimizer.step()
print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""
    done = run("-c", code)
    assert done.stdout == "1\n", done.stderr
