# SPDX-License-Identifier: Apache-2.0
"""The files from which `make deb` builds the Debian packages agree with the rest of the tree."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest

from sentineld import __version__, config

ROOT = Path(__file__).parents[3]
DEBIAN = ROOT / "systemd/debian"
PACKAGE_PLACE = "usr/lib/sentineld/sentineld/"


def changelog_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("changelog", DEBIAN / "changelog.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed(package: str) -> set[str]:
    """The paths that the .install file of a package lists."""
    return set((DEBIAN / f"{package}.install").read_text().split())


def stanza(package: str) -> str:
    control = (DEBIAN / "control").read_text()
    (found,) = re.findall(rf"^Package: {package}\n(?:.+\n)*", control, re.MULTILINE)
    return str(found)


def test_each_part_of_the_python_package_is_in_exactly_one_debian_package() -> None:
    parts = {
        path.name
        for path in (ROOT / "sentineld").iterdir()
        if (path.is_dir() and list(path.rglob("*.py"))) or path.suffix in (".py", ".typed")
    }
    daemon, shim = listed("sentineld"), listed("python3-sentineld-shim")
    assert daemon & shim == set()
    names = [path for path in daemon | shim if path.startswith(PACKAGE_PLACE)]
    assert {path.removeprefix(PACKAGE_PLACE) for path in names} == parts


def test_the_shims_package_has_what_the_shim_imports() -> None:
    """tests/unit/packaging/test_structure.py checks that the shim imports only `parts`."""
    names = [path for path in listed("python3-sentineld-shim") if path.startswith(PACKAGE_PLACE)]
    parts = {path.removeprefix(PACKAGE_PLACE) for path in names}
    assert parts == {"__init__.py", "base", "model", "py.typed", "shim"}


def test_the_packages_depend_on_what_pyproject_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = stanza("sentineld")
    extras = project["optional-dependencies"]
    required = [*project["dependencies"], *extras["planner"], *extras["tui"]]
    for requirement in required:
        name, version = requirement.split(">=")
        epoch = "1:" if name == "numpy" else ""
        assert f" python3-{name} (>= {epoch}{version}),\n" in text
    assert (
        f"X-Python3-Version: {project['requires-python'].replace('>=', '>= ')}\n"
        in (DEBIAN / "control").read_text()
    )
    assert f"python3-{extras['shim'][0].replace('>=', ' (>= ')})" in (
        stanza("python3-sentineld-shim")
    )


def test_the_debian_version_is_that_of_the_package() -> None:
    date = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    first = changelog_module().entry(ROOT, date).splitlines()[0]
    assert re.fullmatch(
        rf"sentineld \({re.escape(__version__)}(~20260102030405)?\) unstable; urgency=medium", first
    )


@pytest.mark.parametrize(
    ("heading", "version"), [("[Unreleased]", "1.2.3~20260102030405"), ("[1.2.3]", "1.2.3")]
)
def test_a_version_is_released_once_the_changelog_has_its_section(
    tmp_path: Path, heading: str, version: str
) -> None:
    for folder in ("sentineld", "systemd/debian"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "sentineld/__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "systemd/debian/control").write_text("Maintainer: A <a@b.invalid>\n")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {heading} - 2026-01-02\n\n- New.\n")
    date = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    lines = changelog_module().entry(tmp_path, date).splitlines()
    assert lines[0].startswith(f"sentineld ({version}) ")
    assert lines[-1] == " -- A <a@b.invalid>  Fri, 02 Jan 2026 03:04:05 +0000"


@pytest.mark.parametrize(("active", "calls"), [(True, "restart sentineld.service\n"), (False, "")])
def test_a_newly_built_module_restarts_only_a_running_daemon(
    tmp_path: Path, active: bool, calls: str
) -> None:
    for name, line in {
        "systemctl": f"exit {0 if active else 3}",
        "deb-systemd-invoke": f'echo "$@" >>{tmp_path}/called',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    script = (DEBIAN / "sentinel-dkms.postinst").read_text()
    # As if systemd ran here, and the module were not loaded.
    script = script.replace("/run/systemd/system", str(tmp_path))
    script = script.replace("/dev/sentinel", str(tmp_path / "none"))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["sh", "-c", script, "sh", "configure"], env=environment, check=True)
    called = tmp_path / "called"
    assert (called.read_text() if called.exists() else "") == calls


def test_each_lintian_override_has_a_reason() -> None:
    for path in DEBIAN.glob("*.lintian-overrides"):
        for paragraph in re.split(r"(?<=\])\n(?=#)", path.read_text()):
            assert paragraph.startswith("# "), paragraph


def test_the_default_configuration_has_the_defaults(tmp_path: Path) -> None:
    text = (ROOT / "systemd/config.toml").read_text()
    assert not [line for line in text.splitlines() if line and not line.startswith("#")]
    settings = re.sub(r"^#(?=\S)", "", text, flags=re.MULTILINE)
    file = tmp_path / "config.toml"
    file.write_text(settings)
    assert len(tomllib.loads(settings)) > 5
    assert config.load(file) == config.Config()
