# SPDX-License-Identifier: Apache-2.0
"""pytest fixtures for tests of the installed system; conftest.py imports them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .guest import TREE, Guest
from .image import ensure_image
from .rootfs import BUILD_PLACE, MODULE, build_module, build_shim, in_root

NOT_NICED = "/etc/sentineld/config.d/not-niced.toml"
"""Sets plan_nice to 0. On a slow machine, the training and the daemon keep the guest's only CPU
busy, and a niced planning process would get a twentieth of the CPU time."""


def install(guest: Guest, stage: Path) -> None:
    """Install sentineld in a guest, as `make install` does. The repository and the C parts must
    be in the guest's TREE.

    `make install` takes half a minute of CPU time in an emulated guest. So it runs in the image's
    root tree with DESTDIR, and only its last step, `make activate`, runs in the guest.

    stage: an empty folder.
    """
    module, shim = build_module(), build_shim()
    in_root(
        f"make -C {TREE} install DESTDIR={BUILD_PLACE}"
        f" KO=/mnt/module/{module.name} SO=/mnt/shim/{shim.name}",
        {stage: BUILD_PLACE},
        {module.parent: "/mnt/module", shim.parent: "/mnt/shim"},
    )
    for place in ("usr/local", "usr/src", f"lib/modules/{ensure_image().kernel_release}/updates"):
        guest.put(stage / place, f"/{place}")
    guest.run(f"make -C {TREE} activate KO={TREE}/{MODULE}", timeout=600)
    guest.run(f"mkdir -p $(dirname {NOT_NICED}); echo 'plan_nice = 0' > {NOT_NICED}")


@pytest.fixture(scope="session")
def installed(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> Guest:
    """The shared guest after `make install`, with the daemon stopped."""
    install(guest, tmp_path_factory.mktemp("stage"))
    return guest


@pytest.fixture(scope="session")
def daemon(installed: Guest) -> Iterator[Guest]:
    """The guest with the daemon under systemd; shared, because starting it takes a minute."""
    installed.run("systemctl start sentineld", timeout=180)
    yield installed
    installed.run("systemctl stop sentineld", timeout=180)
    # When the stopping daemon closes the last session, the module removes its hook. Check that this
    # caused no problem.
    installed.check_kernel_log()
