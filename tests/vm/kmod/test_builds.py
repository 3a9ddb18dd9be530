# SPDX-License-Identifier: Apache-2.0
"""Builds the module against the headers of each supported kernel except the main image's kernel,
for which test_kmod.py builds the module. Without a kernel option that the module needs, the build
must fail."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.vm.headers import PLACE, build_folder, ensure_headers
from tests.vm.host import REPOSITORY, MachineError
from tests.vm.recipe import MAIN, RECIPES
from tests.vm.rootfs import BUILD_PLACE, in_root

pytestmark = [pytest.mark.guest, pytest.mark.apart]

# The headers of sid are configured for a newer compiler than the one in the image. The image's
# compiler ignores some attributes in these headers, and would warn about them.
FLAGS = "-Werror -Wno-attributes -fmax-errors=3"

REQUIRED = ("CONFIG_NUMA_BALANCING", "CONFIG_DYNAMIC_FTRACE_WITH_ARGS", "CONFIG_MMU_NOTIFIER")


def build(folder: Path, suite: str, include: Path | None = None, flags: str = FLAGS) -> None:
    """Build a copy of kmod/ in FOLDER with a suite's headers. Raises MachineError if that fails.

    include: a folder to mount over the folder `include` of the suite's headers.
    flags: options of the compiler.
    """
    for path in (REPOSITORY / "kmod").iterdir():
        if path.suffix in (".c", ".h") and not path.name.endswith(".mod.c"):
            shutil.copy(path, folder)
    for name in ("Kbuild", "Makefile"):
        shutil.copy(REPOSITORY / "kmod" / name, folder)
    headers = ensure_headers(suite)
    kernel = f"{PLACE}/{build_folder(headers).relative_to(headers)}"
    mounted = {headers: PLACE}
    if include is not None:
        mounted[include] = f"{kernel}/include"
    make = f"make -C {BUILD_PLACE} KDIR={kernel} CC=gcc KCFLAGS='{flags}' 2>&1"
    in_root(make, {folder: BUILD_PLACE}, mounted)


@pytest.mark.parametrize("release", [*(name for name in RECIPES if name != MAIN.suite), "sid"])
def test_the_module_builds_with_warnings_as_errors(release: str, tmp_path: Path) -> None:
    work = tmp_path / "kmod"
    work.mkdir()
    build(work, release)
    assert (work / "sentinel.ko").exists()


@pytest.mark.parametrize("option", REQUIRED)
def test_without_a_required_option_the_build_fails_with_the_reason(
    option: str, tmp_path: Path
) -> None:
    work, include = tmp_path / "kmod", tmp_path / "include"
    work.mkdir()
    original = build_folder(ensure_headers("sid")) / "include"
    shutil.copytree(original / "generated", include / "generated")
    (include / "config").mkdir()
    # Copy only the files with lower-case names, for example auto.conf. The others are one empty
    # file for each option.
    for file in (original / "config").glob("[a-z]*"):
        shutil.copy(file, include / "config")
    autoconf = include / "generated/autoconf.h"
    text, found = re.subn(rf"^#define {option} 1\n", "", autoconf.read_text(), flags=re.MULTILINE)
    assert found == 1
    autoconf.write_text(text)
    auto = include / "config/auto.conf"
    auto.write_text(re.sub(rf"^{option}=y\n", "", auto.read_text(), flags=re.MULTILINE))
    with pytest.raises(MachineError, match=f'error "sentinel: needs {option}|#error.*{option}'):
        build(work, "sid", include)


def test_the_module_asks_whether_the_kernel_checks_page_tables(tmp_path: Path) -> None:
    """Debian's kernels lack CONFIG_PAGE_TABLE_CHECK. So if only the module is compiled with this
    option, modpost does not find the kernel's variable that says whether the checks are enabled."""
    work = tmp_path / "kmod"
    work.mkdir()
    with pytest.raises(MachineError, match=r"page_table_check_disabled.* undefined"):
        build(work, "sid", flags=f"{FLAGS} -DCONFIG_PAGE_TABLE_CHECK=1")


@pytest.mark.parametrize("option", REQUIRED)
def test_dkms_skips_kernels_without_a_required_option(option: str) -> None:
    (line,) = re.findall(
        r'^BUILD_EXCLUSIVE_CONFIG="(.*)"$',
        (REPOSITORY / "kmod/dkms.conf").read_text(),
        re.MULTILINE,
    )
    assert option in line.split()
