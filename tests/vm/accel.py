# SPDX-License-Identifier: Apache-2.0
"""Selects KVM if the guest's kernel boots under KVM, else TCG. The result is cached until the host
reboots."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

from .host import CACHE, say, spawn_with_parent
from .image import Image
from .qemu import Accelerator, Hardware, command_line

PROBE_SECONDS = 10
INIT_STARTED = "as init process"
"""The kernel prints this when it starts init."""


def choose_accelerator(image: Image) -> tuple[Accelerator, str]:
    """The accelerator to use, and the reason. Probes each image at most once per host boot."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg", "no usable /dev/kvm"
    cache_file = CACHE / "accelerator.json"
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    try:
        saved = json.loads(cache_file.read_text())
    except (OSError, ValueError):
        saved = {}
    boots = saved.get("boots", {}) if saved.get("boot_id") == boot_id else {}
    if image.directory.name not in boots:
        boots[image.directory.name] = _kvm_boots(image)
        scratch = cache_file.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps({"boot_id": boot_id, "boots": boots}))
        scratch.replace(cache_file)
    if boots[image.directory.name]:
        return "kvm", "the guest boots under KVM"
    return "tcg", f"/dev/kvm exists, but the guest does not boot under KVM in {PROBE_SECONDS} s"


def _kvm_boots(image: Image) -> bool:
    """Boot the kernel under KVM; return whether it starts init within PROBE_SECONDS."""
    say(f"trying KVM once (at most {PROBE_SECONDS} s)")
    with tempfile.TemporaryDirectory(prefix="sentinel-kvm-") as name:
        log = Path(name) / "kernel.log"
        log.touch()
        hardware = Hardware(accelerator="kvm")
        command = command_line(image, hardware, 0, Path(name), log)
        probe = spawn_with_parent(command, Path(name) / "qemu.log")
        try:
            deadline = time.monotonic() + PROBE_SECONDS
            while time.monotonic() < deadline and probe.poll() is None:
                if INIT_STARTED in log.read_text(errors="replace"):
                    return True
                time.sleep(0.2)
            return False
        finally:
            probe.kill()
            probe.wait()
