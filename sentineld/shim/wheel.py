# SPDX-License-Identifier: Apache-2.0
"""Commands of setuptools, used only while a wheel is built: they compile the shim's C library.

A wheel with the library fits one platform and every version of Python 3. It contains no C sources:
pip sets arbitrary modification times, so `library_path()` could not tell whether the library is
newer than the sources. A wheel that is built without a C compiler, or on a platform other than
Linux, contains the sources instead, and the shim compiles them when it first starts.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

LIBRARY = "libsentinelshim.so"
NATIVE = Path("sentineld/shim/native")


class BuildWithObject(build_py):  # type: ignore[misc]
    """build_py that replaces the shim's C sources with the compiled library."""

    def run(self) -> None:
        """Copy the modules; unless the installation is editable, compile the library."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib).resolve() / "sentineld/shim"
        library = target / LIBRARY
        library.unlink(missing_ok=True)  # left by an earlier build in this folder
        command = ["make", "-C", str(NATIVE), f"OUT={library}"]
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.warn(f"the wheel has the sources of {LIBRARY} instead of {LIBRARY}: {error}")
            return
        shutil.rmtree(target / "native")


class PlatformWheel(bdist_wheel):  # type: ignore[misc]
    """bdist_wheel that names the platform if the wheel has the compiled library."""

    def get_tag(self) -> tuple[str, str, str]:
        """The wheel's tag: py3-none-PLATFORM, or py3-none-any without the library."""
        # setuptools calls this after it has put all files into bdist_dir.
        if not (Path(self.bdist_dir) / "sentineld/shim" / LIBRARY).exists():
            return "py3", "none", "any"
        self.root_is_pure = False
        platform: str = super().get_tag()[2]
        return "py3", "none", platform
