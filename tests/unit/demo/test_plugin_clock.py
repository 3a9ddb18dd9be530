# SPDX-License-Identifier: Apache-2.0
"""The modelled clock of the QEMU plugin adds up costs and lets no CPU run far ahead of others."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.demo import counter

CHECK = Path(counter.__file__).with_name("plugin") / "clock_check.c"


def test_costs_add_up_and_running_cpus_stay_together(tmp_path: Path) -> None:
    program = tmp_path / "check"
    compile_ = ["cc", "-std=gnu17", "-Wall", "-Werror", "-pthread"]
    subprocess.run([*compile_, "-o", str(program), str(CHECK)], check=True)
    subprocess.run([str(program)], check=True, timeout=600)
