# SPDX-License-Identifier: Apache-2.0
"""pytest fixtures for tests of the installed system; conftest.py imports them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from .guest import TREE, Guest
from .host import REPOSITORY
from .rootfs import BUILD_PLACE, MODULE, SHIM, in_root

LIBRARY = "/usr/local/lib/sentineld"
"""Where `make install` puts the package."""
NOT_NICED = "/etc/sentineld/config.d/not-niced.toml"
"""Sets plan_nice to 0. On a slow machine, the training and the daemon keep the guest's only CPU
busy, and a niced planning process would get a twentieth of the CPU time."""


@pytest.fixture(scope="session")
def installed(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> Guest:
    """The shared guest after `make install`, with the daemon stopped.

    `make install` compiles the package, which takes half a minute in an emulated guest. It skips
    modules whose bytecode is up to date, so the package is first compiled outside the guest.
    """
    stage = tmp_path_factory.mktemp("bytecode")
    for source in (REPOSITORY / "sentineld").rglob("*.py"):
        copy = stage / source.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy)  # the bytecode contains the source's modification time
    compile_package = f"python3 -m compileall -q -s {BUILD_PLACE} -p {LIBRARY}"
    in_root(f"{compile_package} {BUILD_PLACE}/sentineld", {stage: BUILD_PLACE})
    guest.put(stage / "sentineld", f"{LIBRARY}/sentineld")
    guest.run(f"make -C {TREE} install KO={TREE}/{MODULE} SO={TREE}/{SHIM}", timeout=600)
    guest.run(f"mkdir -p $(dirname {NOT_NICED}); echo 'plan_nice = 0' > {NOT_NICED}")
    return guest


@pytest.fixture(scope="session")
def daemon(installed: Guest) -> Iterator[Guest]:
    """The guest with the daemon under systemd; shared, because starting it takes a minute."""
    installed.run("systemctl start sentineld", timeout=180)
    yield installed
    installed.run("systemctl stop sentineld", timeout=180)
