# SPDX-License-Identifier: Apache-2.0
"""`make install` into a staging folder, and `make uninstall`."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from docs.command_files import command_files
from sentineld import __version__
from sentineld.base.errors import EXIT_STATUS
from sentineld.machine.machine import EBPF_REQUIRED_TIMEOUT_S

ROOT = Path(__file__).parents[3]


def make(target: str, stage: Path) -> None:
    """Make a target, with a umask that lets no other user read new files."""
    command = ["make", target, f"DESTDIR={stage}", f"SYSTEM_PYTHON={sys.executable}"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, umask=0o077
    )
    assert done.returncode == 0, done.stdout + done.stderr


def files(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stage = tmp_path_factory.mktemp("stage")
    make("install", stage)
    return stage


def test_the_whole_package_is_installed(stage: Path) -> None:
    installed = files(stage / "usr/local/lib/sentineld")
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "sentineld").rglob("*.py")}
    programs = {str(path.relative_to(ROOT)) for path in (ROOT / "bpf").glob("*.[ch]")}
    assets = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "sentineld/report/assets").rglob("*")
        if path.is_file()
    }
    assert modules | programs | assets <= installed
    assert "sentineld/shim/libsentinelshim.so" in installed
    assert not {name for name in installed if name.startswith("tests")}


def test_the_links_of_installed_pages_resolve(stage: Path) -> None:
    folder = stage / "usr/local/share/doc/sentineld"
    for page in folder.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), (page, target)
    readme = (folder / "README.md").read_text()
    assert "[install](how-to/install.md)" in readme
    assert "](sessions-80x24.svg)" in readme


def test_slurms_scripts_are_executable(stage: Path) -> None:
    scripts = list((stage / "usr/local/lib/sentineld/slurm").iterdir())
    assert {script.name for script in scripts} == {"prolog", "epilog", "task-prolog"}
    assert all(script.stat().st_mode & 0o111 == 0o111 for script in scripts)


def test_system_files_are_in_systemds_folders(stage: Path) -> None:
    installed = files(stage / "usr/local/lib") - files(stage / "usr/local/lib/sentineld")
    assert (stage / "etc/sentineld/config.toml").is_file()
    assert {
        "systemd/system/sentineld.service",
        "sysusers.d/sentineld.conf",
        "tmpfiles.d/sentineld.conf",
        "modules-load.d/sentineld.conf",
        "systemd/catalog/sentineld.catalog",
    } <= installed
    # The module creates its device for root only, and no udev rule may change that.
    assert not [name for name in installed if name.startswith("udev")]


def test_the_installed_programs_run_without_the_source_tree(stage: Path) -> None:
    library = str(stage / "usr/local/lib/sentineld")
    for program in ("sentineld", "sentinelctl"):
        launcher = (stage / "usr/local/bin" / program).read_text()
        assert launcher.startswith(f"#!{sys.executable} -P\n")
        # The launcher names the package's final place, but here the package is in the staging
        # folder.
        script = launcher.replace("/usr/local/lib/sentineld", library)
        command = [sys.executable, "-I", "-c", script, "--version"]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip().endswith(__version__)


def test_all_users_may_read_the_installed_files(stage: Path) -> None:
    for path in stage.rglob("*"):
        wanted = 0o555 if path.is_dir() else 0o444
        assert path.stat().st_mode & wanted == wanted, path


@pytest.mark.parametrize("program", ["sentineld", "sentinelctl"])
def test_processes_that_import_a_launcher_do_not_run_it_again(
    stage: Path, tmp_path: Path, program: str
) -> None:
    launcher = (stage / "usr/local/bin" / program).read_text()
    library = str(stage / "usr/local/lib/sentineld")
    file = tmp_path / program
    file.write_text(launcher.replace("/usr/local/lib/sentineld", library))
    # A child process of multiprocessing runs the main file under the name __mp_main__.
    code = f"import runpy; print('main' in runpy.run_path({str(file)!r}, run_name='__mp_main__'))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd="/", capture_output=True, text=True, timeout=300
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_man_pages_and_completions_are_installed(stage: Path) -> None:
    assert set(command_files()) <= files(stage / "usr/local/share")


COUNT_IMPORT_HOOKS = """
import site, sys
for _ in range(2):  # twice, as in a virtual environment with system site packages
    site.addsitedir(sys.argv[1])
print(sum(type(finder).__module__ == "sentineld.shim.torch_import" for finder in sys.meta_path))
"""


@pytest.mark.parametrize(("setting", "hooks"), [("1", 1), ("0", 0), (None, 0)])
def test_the_shim_is_enabled_by_its_environment_variable(
    stage: Path, tmp_path: Path, setting: str | None, hooks: int
) -> None:
    (written,) = stage.rglob("sentineld.pth")
    library = str(stage / "usr/local/lib/sentineld")
    text = written.read_text().replace("/usr/local/lib/sentineld", library)
    (tmp_path / "sentineld.pth").write_text(text)
    command = [sys.executable, "-S", "-I", "-c", COUNT_IMPORT_HOOKS, str(tmp_path)]
    environment = {} if setting is None else {"SENTINELD_SHIM": setting}
    done = subprocess.run(
        command, cwd="/", env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == f"{hooks}\n", done.stderr
    assert done.stderr == ""


def unit_of(stage: Path) -> configparser.SectionProxy:
    # A unit file may contain the same setting more than once.
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(stage / "usr/local/lib/systemd/system/sentineld.service")
    return unit["Service"]


def test_the_unit_starts_the_installed_daemon(stage: Path) -> None:
    service = unit_of(stage)
    program = service["ExecStart"].split()[0]
    assert (stage / program.removeprefix("/")).stat().st_mode & 0o111 == 0o111
    assert "@" not in (
        stage / "usr/local/lib/systemd/system/sentineld.service"
    ).read_text().replace("modprobe@sentinel", "").replace("@system-service", "").replace(
        "@module", ""
    )


def test_the_unit_does_not_restart_after_permanent_errors(stage: Path) -> None:
    statuses = {int(status) for status in unit_of(stage)["RestartPreventExitStatus"].split()}
    assert statuses == {EXIT_STATUS[code] for code in ("usage", "busy", "bad-config")}


def test_systemd_waits_until_the_daemon_gives_up_waiting_for_its_probes(stage: Path) -> None:
    assert int(unit_of(stage)["TimeoutStartSec"]) >= EBPF_REQUIRED_TIMEOUT_S + 30


def test_a_stopped_unit_keeps_the_folder_that_containers_mount(stage: Path) -> None:
    assert unit_of(stage)["RuntimeDirectoryPreserve"] == "yes"


def test_the_modules_source_is_installed_for_dkms(stage: Path) -> None:
    (source,) = (stage / "usr/src").iterdir()
    settings = dict(
        re.findall(r'^(\w+)(?:\[0\])?="?([^"\n]*)"?$', (source / "dkms.conf").read_text(), re.M)
    )
    assert settings["PACKAGE_NAME"] == "sentinel"
    assert source.name == f"sentinel-{settings['PACKAGE_VERSION']}"
    sources = {path.name for path in (ROOT / "kmod").glob("*.[ch]") if ".mod." not in path.name}
    assert sources | {"Kbuild", "Makefile"} <= files(source)


DKMS = """#!/bin/sh
echo "$@" >>{calls}
[ "$1 $2" != "status -m" ] || printf 'sentinel/0.old, 6.1.0-1-amd64, x86_64: installed\\n'
[ "$1 $5" != "build 6.1.0-1-amd64" ]
"""


def test_dkms_has_only_this_version_of_the_module_for_all_kernels(tmp_path: Path) -> None:
    """Scripts take the place of dkms, which fails to build for one of the kernels, and of the
    programs of systemd."""
    calls = tmp_path / "calls"
    for name in ("systemd-sysusers", "systemd-tmpfiles", "journalctl", "systemctl", "dkms"):
        program = tmp_path / name
        program.write_text(DKMS.format(calls=calls) if name == "dkms" else "#!/bin/sh\n")
        program.chmod(0o755)
    command = ["make", "activate", "KERNELS=6.1.0-1-amd64 6.12.0-2-amd64"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "not built for kernel 6.1.0-1-amd64" in done.stdout
    (version,) = re.findall(r'^PACKAGE_VERSION="(.+)"', (ROOT / "kmod/dkms.conf").read_text(), re.M)
    assert [line for line in calls.read_text().splitlines() if not line.startswith("status")] == [
        "remove sentinel/0.old --all",
        f"add sentinel/{version}",
        f"build --force sentinel/{version} -k 6.1.0-1-amd64",
        f"build --force sentinel/{version} -k 6.12.0-2-amd64",
        f"install --force sentinel/{version} -k 6.12.0-2-amd64",
    ]


def test_uninstall_removes_only_what_was_installed(tmp_path: Path) -> None:
    settings = tmp_path / "etc/sentineld/config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("metrics_port = 0\n")
    make("install", tmp_path)
    other = tmp_path / "usr/local/lib/systemd/system/other.service"
    other.write_text("[Unit]\n")
    assert len(files(tmp_path)) > 30
    make("uninstall", tmp_path)
    remaining = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert remaining == {other, settings}
    assert settings.read_text() == "metrics_port = 0\n"  # neither replaced nor removed


def test_every_source_of_the_shim_is_in_the_wheel() -> None:
    """Where the compiled library is missing, the shim builds it from these files."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folder = ROOT / "sentineld/shim"
    packaged = {
        path for glob in setuptools["package-data"]["sentineld.shim"] for path in folder.glob(glob)
    }
    sources = {path for path in (folder / "native").rglob("*") if path.suffix in (".c", ".h")}
    assert sources <= packaged
