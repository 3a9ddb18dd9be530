# SPDX-License-Identifier: Apache-2.0
"""Starting programs under the shim, and where the shim cannot work."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.shim.daemon_side import ROOT, TRAIN

pytest.importorskip("torch")


def python(
    *arguments: str, cwd: Path = ROOT, within: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """within: a command that runs it."""
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


TELL = "import sys; print(__name__, sys.argv, repr(sys.path[0]))"


def test_a_script_sees_what_python_would_show_it(tmp_path: Path) -> None:
    script = tmp_path / "tell.py"
    script.write_text(TELL + "; print(__file__); sys.exit(7)")
    done = run(str(script), "--socket", "x", cwd=tmp_path)
    plain = subprocess.run(
        [sys.executable, str(script), "--socket", "x"], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode, done.stderr) == (plain.stdout, 7, "")


def test_a_module_and_a_command(tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text(TELL)
    module = run("-m", "tell", "a", cwd=tmp_path)
    assert module.stdout.startswith("__main__"), module.stderr
    assert "'a']" in module.stdout
    command = run("-c", TELL, "b", cwd=tmp_path)
    assert command.stdout == "__main__ ['-c', 'b'] ''\n"


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
        ({"SENTINELD_SHIM_HEAP_BYTES": str(1 << 47)}, "no room for its heap"),
    ],
)
def test_where_it_cannot_work_training_runs_all_the_same(
    environment: dict[str, str], reason: str
) -> None:
    plain = subprocess.run(
        [sys.executable, str(TRAIN), "cnn", "3"], capture_output=True, text=True, check=True
    )
    done = run(str(TRAIN), "cnn", "3", **environment)
    assert done.stdout == plain.stdout
    assert done.stderr.startswith("sentineld.shim: running unmanaged: ")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


def test_torch_first_is_a_passthrough() -> None:
    code = "import torch, sentineld.shim; print(sentineld.shim.load(), torch.ones(5000).sum())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout == "False tensor(5000.)\n"
    assert "torch was imported before" in done.stderr


SEEN = "import torch; print(torch.empty(5000).data_ptr() % 4096)"
"""0 where the shim serves tensors, at the begin of pages; malloc never does."""


def test_importing_it_first_is_enough() -> None:
    for code in (
        f"import sentineld.shim; {SEEN}",
        f"import sentineld.shim, sentineld.shim; sentineld.shim.arm(); {SEEN}",
        f"import sentineld.shim; print(sentineld.shim.load()); {SEEN}",
    ):
        done = python("-c", code)
        assert done.stdout.splitlines()[-1] == "0", done.stderr
        assert done.stderr == ""


def test_torch_and_its_loader_are_what_they_are_without_it() -> None:
    tell = (
        "import torch, importlib.util as u; s = torch.__spec__;"
        "print(type(s.loader).__name__, type(torch.__loader__).__name__, s.origin, torch.__file__)"
    )
    assert python("-c", f"import sentineld.shim; {tell}").stdout == python("-c", tell).stdout


def test_a_program_without_torch_stays_without_it() -> None:
    code = "import sentineld.shim, sys; print('torch' in sys.modules, 'ctypes.util' in sys.modules)"
    done = python("-c", code)
    assert done.stdout.startswith("False"), done.stderr
    # Nor is a missing torch any other error than before.
    missing = "import sys; sys.path[:] = []; sys.path_importer_cache.clear(); import torch"
    done = python("-S", "-c", f"import sentineld.shim; {missing}")
    assert "ModuleNotFoundError: No module named 'torch'" in done.stderr
    assert "sentineld.shim:" not in done.stderr


def test_the_environment_keeps_it_out() -> None:
    code = f"import sentineld.shim; print(sentineld.shim.load()); {SEEN}"
    done = python("-c", code, SENTINELD_SHIM="0")
    told, alignment = done.stdout.split()
    assert told == "False"
    assert alignment != "0"
    assert done.stderr == ""


def sentinelctl_run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    ctl = "from sentineld.cli import main; main()"
    return python("-c", ctl, "--socket", "/nonexistent", "run", "--", *command, **environment)


def test_run_puts_every_python_under_it_and_passes_the_rest_on(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = 'mine'\n")
    code = f"import sys; print(sys.mine, sys.argv, [p for p in sys.path if 'inject' in p]); {SEEN}"
    shell = '"$0" -c "$1" --fast x; exit 7'
    done = sentinelctl_run("sh", "-c", shell, sys.executable, code, PYTHONPATH=f"{ROOT}:{tmp_path}")
    assert done.stdout.splitlines() == ["mine ['-c', '--fast', 'x'] []", "0"], done.stderr
    assert done.returncode == 7
    lines = done.stderr.splitlines()
    assert len(lines) <= 1  # once, however often the daemon is asked for
    assert all(line.startswith("warning: ") and "runs on" in line for line in lines)


def test_run_says_what_does_not_start() -> None:
    done = sentinelctl_run("/no/such/program")
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot start /no/such/program: ")
    assert done.stderr.count("\n") == 1


def test_a_signal_to_run_is_the_commands() -> None:
    code = "import os, signal, sys; os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
    assert sentinelctl_run(sys.executable, "-c", code).returncode == 128 + 15


def test_impossible_sizes_raise_torchs_own_error() -> None:
    code = """
import torch
try:
    torch.empty(1 << 50)
except RuntimeError as error:
    print(type(error).__name__, "allocate" in str(error))
print(torch.empty(0).data_ptr(), torch.ones(100000).sum().item())
print(torch.empty(5000).data_ptr() % 4096)
"""
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
