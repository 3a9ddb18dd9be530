# SPDX-License-Identifier: Apache-2.0
"""DKMS builds the module from the sources that `make install` puts into /usr/src."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .host import REPOSITORY
from .image import ensure_image
from .rootfs import in_root

pytestmark = pytest.mark.guest


def test_dkms_builds_and_installs_the_module(tmp_path: Path) -> None:
    stage, trees = tmp_path / "stage", tmp_path / "trees"
    subprocess.run(
        ["make", "install", f"DESTDIR={stage}", f"SYSTEM_PYTHON={sys.executable}"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        timeout=300,
    )
    (source,) = (stage / "usr/src").iterdir()
    version = source.name.removeprefix("sentinel-")
    kernel = ensure_image().kernel_release
    (trees / "dkms").mkdir(parents=True)
    (trees / "modules" / kernel).mkdir(parents=True)
    places = (
        "--dkmstree /root/trees/dkms --sourcetree /root/source --installtree /root/trees/modules"
    )
    module = f"-m sentinel -v {version}"
    in_root(
        f"dkms add {places} {module} && "
        f"dkms install {places} {module} -k {kernel} --no-depmod"
        f" --kernelsourcedir /lib/modules/{kernel}/build >/root/trees/log 2>&1"
        " || { cat /root/trees/log /root/trees/dkms/sentinel/*/build/make.log; exit 1; }",
        {trees: "/root/trees"},
        {stage / "usr/src": "/root/source"},
    )
    (built,) = trees.glob(f"modules/{kernel}/**/sentinel.ko*")
    place = built.relative_to(trees)
    fields = in_root(f"modinfo /root/trees/{place}", {trees: "/root/trees"}).stdout
    assert re.search(rf"^vermagic: +{re.escape(kernel)} ", fields, re.MULTILINE)
    assert re.search(r"^license: +GPL", fields, re.MULTILINE)
    (log,) = trees.glob(f"dkms/sentinel/{version}/{kernel}/**/make.log")
    lines = log.read_text().splitlines()
    assert any("sentinel.o" in line for line in lines)
    assert not [line for line in lines if "warning:" in line]
