# SPDX-License-Identifier: Apache-2.0
"""A process that cannot be managed prints one message and keeps its losses, bit for bit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.shim.daemon_side import ROOT, Daemon, Training, manage
from tests.integration.shim.test_compat import SCRIPT, check_losses
from tests.integration.shim.test_start import THREE_STEPS, plain, run

torch = pytest.importorskip("torch")

ALLOC, FREE = "_ZN3c109alloc_cpuEm", "_ZN3c108free_cpuEPv"


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    return Daemon(tmp_path / "shim.sock")


@pytest.mark.parametrize("moved", [(ALLOC,), (FREE,), (ALLOC, FREE)])
def test_a_torch_with_other_symbol_names(tmp_path: Path, moved: tuple[str, ...]) -> None:
    sources = tmp_path / "native"
    shutil.copytree(ROOT / "sentineld/shim/native", sources)
    # Renaming the shim's functions has the same effect as a torch whose functions have other names.
    for source in sources.glob("*.c"):
        text = source.read_text()
        for name in moved:
            text = text.replace(name, f"{name}i")
        source.write_text(text)
    library = tmp_path / "library.so"
    make = ["make", "-C", str(sources), f"OUT={library}", "CFLAGS=-O0"]
    subprocess.run(make, check=True, capture_output=True, text=True)
    done = run(*THREE_STEPS, SENTINELD_SHIM_LIBRARY=str(library))
    assert done.stdout == plain()
    reason = "this torch does not allocate through c10::alloc_cpu"
    assert done.stderr == f"sentineld.shim: running unmanaged: {reason}\n"


def at_import(code: str, folder: Path) -> str:
    """A PYTHONPATH that makes torch run a line of code at the end of its import."""
    (folder / "late.py").write_text(f"import ctypes, torch\n\n\ndef run():\n    {code}\n")
    facts = folder / "late-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[torch.backends]\nlate = late:run\n")
    return f"{ROOT}:{folder}"


@pytest.mark.parametrize(
    "name", ["_C._current_graph_task_id", "nn.modules.module.register_module_forward_hook"]
)
def test_a_torch_without_functions_that_the_hooks_need(tmp_path: Path, name: str) -> None:
    done = run(*THREE_STEPS, PYTHONPATH=at_import(f"del torch.{name}", tmp_path))
    assert done.stdout == plain()
    (line,) = done.stderr.splitlines()
    assert line.startswith("sentineld.shim: running unmanaged: the hooks do not fit this torch: ")
    assert name.rpartition(".")[2] in line


def test_a_torch_with_an_incompatible_profiler(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = "del torch._C._autograd._ProfilerResult.experimental_event_tree"
    monkeypatch.setenv("PYTHONPATH", at_import(gone, tmp_path))
    training = Training("cnn", socket_path=daemon.path, stop=tmp_path / "stop")
    daemon.accept()
    daemon.wait_steps(2)
    daemon.send({"type": "profile_ops"})
    note = daemon.receive("note")["text"]
    assert note.startswith("this torch's profiler reports no accesses: AttributeError: ")
    manage(daemon)
    daemon.wait_steps(6)
    check_losses(training)
    assert training.shim_lines() == [f"sentineld.shim: {note}"]
    daemon.close()


@pytest.fixture(scope="module")
def other_allocator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("allocator") / "allocator.so"
    folder = Path(torch.__file__).parent
    source = Path(__file__).parent / "allocator.cpp"
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-o", str(library), str(source)]
    command += [f"-I{folder}/include", f"-L{folder}/lib", "-lc10"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


def test_a_script_that_replaces_torchs_allocator(
    daemon: Daemon, tmp_path: Path, other_allocator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_ALLOCATOR", str(other_allocator))
    training = Training("replace", socket_path=daemon.path, stop=tmp_path / "stop", script=SCRIPT)
    daemon.accept()
    assert daemon.hung_up()
    training.wait_losses(12)
    losses = training.finish(managed=False)
    assert losses == training.plain_losses(len(losses))
    reason = "the script has replaced torch's allocator"
    assert training.shim_lines() == [f"sentineld.shim: unmanaged from here on: {reason}"]
    daemon.close()


def test_an_allocator_replaced_during_torchs_import(tmp_path: Path, other_allocator: Path) -> None:
    code = f"ctypes.CDLL({str(other_allocator)!r}).replace_allocator()"
    done = run(*THREE_STEPS, PYTHONPATH=at_import(code, tmp_path))
    assert done.stdout == plain()
    reason = "this torch does not allocate through c10::alloc_cpu"
    assert done.stderr == f"sentineld.shim: running unmanaged: {reason}\n"
