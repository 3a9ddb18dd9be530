# SPDX-License-Identifier: Apache-2.0
"""KVM where it boots the guest's kernel, else TCG; found out once a boot of the host."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

from .host import CACHE, say, spawn_for_life
from .image import Image
from .qemu import Accelerator, Hardware, command_line

PROBE_SECONDS = 10
USERLAND_MARK = "as init process"
"""The kernel prints this once it is up: KVM booted it."""


def choose_accelerator(image: Image) -> tuple[Accelerator, str]:
    """The accelerator to use and why, in words. Probes each image at most once a host boot."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg", "no usable /dev/kvm"
    remembered = CACHE / "accelerator.json"
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    try:
        known = json.loads(remembered.read_text())
    except (OSError, ValueError):
        known = {}
    boots = known.get("boots", {}) if known.get("boot_id") == boot_id else {}
    if image.directory.name not in boots:
        boots[image.directory.name] = _kvm_boots(image)
        scratch = remembered.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps({"boot_id": boot_id, "boots": boots}))
        scratch.replace(remembered)
    if boots[image.directory.name]:
        return "kvm", "the guest boots under KVM here"
    return "tcg", f"/dev/kvm is there, but no guest boots with it in {PROBE_SECONDS} s"


def _kvm_boots(image: Image) -> bool:
    """Boot the kernel under KVM and watch its log until userland or time is up."""
    say(f"trying KVM once (at most {PROBE_SECONDS} s)")
    with tempfile.TemporaryDirectory(prefix="sentinel-kvm-") as name:
        log = Path(name) / "kernel.log"
        log.touch()
        hardware = Hardware(accelerator="kvm")
        command = command_line(image, hardware, 0, Path(name), log)
        probe = spawn_for_life(command, Path(name) / "qemu.log")
        try:
            deadline = time.monotonic() + PROBE_SECONDS
            while time.monotonic() < deadline and probe.poll() is None:
                if USERLAND_MARK in log.read_text(errors="replace"):
                    return True
                time.sleep(0.2)
            return False
        finally:
            probe.kill()
            probe.wait()
