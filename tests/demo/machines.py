# SPDX-License-Identifier: Apache-2.0
"""Chooses the demo's machine: this one if it has two memory tiers, else a guest."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sentineld.host.sysfs import kernel_tiers
from tests.demo.counter import FILE_BYTES, Counter, build
from tests.demo.prices import preset_prices
from tests.vm.guest import TREE, Guest
from tests.vm.host import REPOSITORY, MachineError, phase
from tests.vm.rootfs import MODULE, SHIM, build_artifacts, in_root

RUN = "exec python3 -u -m tests.demo.guest_run"

GUEST_FAST_MIB = 1024
GUEST_SLOW_MIB = 1536
"""The memory of both nodes together ends below the PCI hole, so that each node is one range of
addresses."""

FILES = {
    "/run/systemd/system/sentineld.service.d/demo.conf": """\
[Service]
NUMAPolicy=preferred
NUMAMask=1
""",
    "/etc/sentineld/config.d/demo.toml": """\
barrier_timeout_ms = 60000
ebpf = "off"
""",
}
"""The daemon's settings in the guest: path -> text.

The drop-in keeps the daemon's memory off the fast node, because tests/demo/balloon.py controls how
much memory is free on this node. The time-out of barriers is long, because it is measured with the
guest's time, in which moves take 10 to 20 times as long while the plugin keeps its clock. eBPF is
off, because compiling the daemon's eBPF programs takes a minute on an emulated CPU. The daemon
therefore does not report other processes that move the training's pages.
"""

ACTIVATE = """
set -e
systemd-sysusers /usr/local/lib/sysusers.d/sentineld.conf
systemd-tmpfiles --create /usr/local/lib/tmpfiles.d/sentineld.conf
udevadm control --reload
systemctl daemon-reload
insmod /lib/modules/$(uname -r)/updates/sentinel.ko
systemctl start sentineld
"""
"""Runs the commands of `make activate`, except depmod, which takes half a minute on an emulated
CPU. Also reloads the udev rules, loads the module and starts the daemon."""


@dataclass
class Machine:
    """A machine on which sentineld runs."""

    description: str
    command: list[str]  # starts guest_run.py on the machine
    counter: Counter | None = None  # counter of the QEMU plugin
    guest: Guest | None = None


def has_two_tiers(sys_root: Path = Path("/sys")) -> bool:
    """Whether node 0 is in this machine's fastest memory tier and node 1 in a slower one: the demo
    uses these two nodes."""
    fastest, *slower = kernel_tiers(sys_root) or ((),)
    return 0 in fastest and any(1 in nodes for nodes in slower)


@contextlib.contextmanager
def choose() -> Iterator[Machine]:
    """Yield the demo's machine, on which sentineld runs. If it is a guest, it is shut down when the
    context ends. Raises MachineError."""
    if has_two_tiers():
        yield _this_machine()
        return
    with (
        tempfile.TemporaryDirectory(prefix="sentineld-demo-") as folder,
        _guest(Path(folder)) as up,
    ):
        yield up


def _this_machine() -> Machine:
    if os.geteuid() != 0:
        raise MachineError("the demo limits the free memory of node 0 and needs root (try sudo)")
    active = subprocess.run(["systemctl", "is-active", "--quiet", "sentineld"])
    if active.returncode != 0:
        raise MachineError(
            "this machine has two memory tiers, but sentineld is not running "
            "(make install && systemctl start sentineld)"
        )
    command = ["bash", "-c", f"cd {REPOSITORY} && {RUN}"]
    return Machine("this machine's own memory tiers", command)


@contextlib.contextmanager
def _guest(folder: Path) -> Iterator[Machine]:
    plugin = build(REPOSITORY / "build" / "demo" / "counter.so")
    fast, slow = GUEST_FAST_MIB << 20, GUEST_SLOW_MIB << 20
    shared = folder / "counts"
    # For an access, QEMU 7.2 reports the sum of the physical address and of the offset at which the
    # node's memory lies in QEMU's RAM. For node 1, both the physical addresses and the offsets
    # begin at `fast`, so the reported addresses begin at 2 * fast.
    counter = Counter(shared, [(0, fast), (2 * fast, 2 * fast + slow)], preset_prices())
    with Guest(
        fast_mib=GUEST_FAST_MIB,
        slow_mib=GUEST_SLOW_MIB,
        plugin=f"{plugin},counts={shared}",
        extra=clock_device(shared),
    ) as guest:
        with phase("install in the guest"):
            install(guest, folder)
        yield Machine(
            f"QEMU guest ({guest.accelerator}), {GUEST_FAST_MIB} MiB fast and "
            f"{GUEST_SLOW_MIB} MiB slow",
            guest.connection.argv(f"cd {TREE} && {RUN}"),
            counter,
            guest,
        )
        guest.check_kernel_log()


def clock_device(shared: Path) -> tuple[str, ...]:
    """QEMU's arguments for the device whose memory is the shared file of the plugin."""
    backend = f"memory-backend-file,id=clock,share=on,mem-path={shared},size={FILE_BYTES}"
    return ("-object", backend, "-device", "ivshmem-plain,memdev=clock")


def stage(folder: Path) -> None:
    """Run `make install` with DESTDIR=FOLDER/root and the guest's Python. The command runs
    on the host, in the guest's root file system, because an emulated CPU in the guest is slow."""
    artifacts = build_artifacts()
    work = {folder: "/root/stage"}
    for path in artifacts.values():
        shutil.copy(path, folder)
    ko, so = (f"/root/stage/{path.name}" for path in (artifacts[MODULE], artifacts[SHIM]))
    target = f"KO={ko} SO={so} DESTDIR=/root/stage/root"
    in_root(f"make -s -C /root/sentineld install {target}", work)


def install(guest: Guest, folder: Path) -> None:
    """Install sentineld in the guest and start it. The files are built in FOLDER."""
    staged = folder / "stage"
    staged.mkdir()
    stage(staged)
    guest.put_tree()
    # /lib is a symbolic link in the guest
    unpack = guest.connection.argv("tar -x --keep-directory-symlink --no-same-owner -C /")
    with subprocess.Popen(["tar", "-C", staged / "root", "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(unpack, stdin=tar.stdout, check=True)
    for path, text in FILES.items():
        guest.run(f"mkdir -p {Path(path).parent} && cat > {path}", stdin=text)
    guest.run(ACTIVATE)
