# SPDX-License-Identifier: Apache-2.0
"""DKMS builds the module from the sources that `make install` puts into /usr/src."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .host import REPOSITORY, MachineError
from .image import ensure_image
from .rootfs import in_root

pytestmark = [pytest.mark.guest, pytest.mark.apart]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module's sources as `make install` puts them into /usr/src."""
    stage = tmp_path_factory.mktemp("dkms") / "stage"
    subprocess.run(
        ["make", "install", f"DESTDIR={stage}", f"SYSTEM_PYTHON={sys.executable}"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        timeout=300,
    )
    (source,) = (stage / "usr/src").iterdir()
    return source


def install(source: Path, trees: Path, config: str = "") -> None:
    """Have dkms build and install the module in the image's tree. Raises MachineError on failure.

    config: the kernel configuration that dkms reads, as a path in the tree; "": the kernel's own.
    """
    kernel = ensure_image().kernel_release
    (trees / "dkms").mkdir(parents=True)
    (trees / "modules" / kernel).mkdir(parents=True)
    places = (
        "--dkmstree /root/trees/dkms --sourcetree /root/source --installtree /root/trees/modules"
    )
    module = f"-m sentinel -v {version(source)}"
    in_root(
        f"dkms add {places} {module} && "
        f"dkms install {places} {module} -k {kernel} --no-depmod"
        f" --kernelsourcedir /lib/modules/{kernel}/build {config and f'--config {config}'}"
        " >/root/trees/log 2>&1"
        " || { cat /root/trees/log /root/trees/dkms/sentinel/*/build/make.log; exit 1; }",
        {trees: "/root/trees"},
        {source.parent: "/root/source"},
    )


def version(source: Path) -> str:
    return source.name.removeprefix("sentinel-")


def test_dkms_builds_and_installs_the_module(source: Path, tmp_path: Path) -> None:
    trees, kernel = tmp_path, ensure_image().kernel_release
    install(source, trees)
    (built,) = trees.glob(f"modules/{kernel}/**/sentinel.ko*")
    place = built.relative_to(trees)
    fields = in_root(f"modinfo /root/trees/{place}", {trees: "/root/trees"}).stdout
    assert re.search(rf"^vermagic: +{re.escape(kernel)} ", fields, re.MULTILINE)
    assert re.search(r"^license: +GPL", fields, re.MULTILINE)
    (log,) = trees.glob(f"dkms/sentinel/{version(source)}/{kernel}/**/make.log")
    lines = log.read_text().splitlines()
    assert any("sentinel.o" in line for line in lines)
    assert not [line for line in lines if "warning:" in line]


def test_dkms_skips_a_kernel_without_numa_balancing(source: Path, tmp_path: Path) -> None:
    image = ensure_image()
    text = (image.root / f"boot/config-{image.kernel_release}").read_text()
    assert "CONFIG_NUMA_BALANCING=y\n" in text
    (tmp_path / "config").write_text(text.replace("CONFIG_NUMA_BALANCING=y\n", ""))
    with pytest.raises(MachineError, match="BUILD_EXCLUSIVE"):
        install(source, tmp_path, config="/root/trees/config")
    assert not list(tmp_path.glob("modules/**/sentinel.ko*"))
    assert not list(tmp_path.glob("dkms/**/make.log"))  # dkms did not begin a build
