# SPDX-License-Identifier: Apache-2.0
"""The content of the guest images, one recipe each. A hash of this file is in the cache keys."""

from __future__ import annotations

import dataclasses
from pathlib import Path

HOSTNAME = "sentinel-vm"

GUEST_ADDRESS = "10.0.2.15/24"
GUEST_GATEWAY = "10.0.2.2"
GUEST_NAMESERVER = "10.0.2.3"
"""QEMU's user-mode network uses these addresses in every guest."""

MACHINE_PACKAGES = (
    # the machine
    "systemd-sysv",
    "systemd",
    "udev",
    "kmod",
    "procps",
    "iproute2",
    "openssh-server",
    "linux-image-amd64",
    "linux-headers-amd64",
    "busybox-static",
    "numactl",
    # building and checking the module
    "gcc",
    "libc6-dev",
    "make",
    "sparse",
)
"""Packages of every image: to build, load and check the kernel module."""

BACKEND_PACKAGES = (
    "python3",
    "python3-numpy",
)
"""Additional packages that the backends need."""

PRODUCT_PACKAGES = (
    "dbus",
    # the third tier
    "ndctl",
    "daxctl",
    "dkms",
    # imported by the daemon, the CLI and the trainings
    "python3-bpfcc",
    "python3-click",
    "python3-prometheus-client",
    "python3-pyroute2",
    "python3-pytest",
    "python3-scipy",
    "python3-textual",
    "python3-torch",
    # scrapes the daemon
    "prometheus",
    # the terminal of the live view
    "tmux",
)
"""Additional packages that the daemon, trainings and monitoring need."""

MODULES_LEFT_OUT = ("arch/x86/kvm", "drivers", "fs", "net", "sound")
MODULES_KEPT = (
    *(f"drivers/{kind}" for kind in ("acpi", "block", "char", "dax", "nvdimm", "tee", "virtio")),
    *("drivers/net/net_failover", "drivers/net/virtio_net", "net/core"),
    *(f"fs/{kind}" for kind in ("binfmt_misc", "configfs", "ext4", "fuse", "jbd2", "mbcache")),
    "fs/overlayfs",
)
"""Folders of kernel modules that are not installed, and the folders and modules in them that are
installed. depmod reads every installed module, so all modules would take a minute under
emulation."""

FILES_LEFT_OUT = (
    # makes an initrd that no guest uses (see initrd.py)
    "/etc/kernel/postinst.d/initramfs-tools",
    "/usr/bin/*-lto-dump-*",
    "/usr/lib/libtorch-test/*",
    *(f"/usr/lib/python3/dist-packages/{package}/*/tests/*" for package in ("scipy", "sympy")),
    "/usr/share/javascript/*",
    # used only by libucx's transports between AMD's GPUs, which torch does not load
    *(f"/usr/lib/*/{library}.so*" for library in ("libamd_comgr", "libamdhip64", "libLLVM-17")),
)
"""Files of the packages that no guest needs."""

DIVERTED = "/usr/bin/py3compile"
"""Compiles every module of every package. dpkg installs this program under another name, so that
the packages do not run it; Recipe.imports compiles the few modules that guests import."""
DIVERTED_TO = f"{DIVERTED}.distrib"

DPKG_OPTIONS = (
    "force-unsafe-io",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/lintian/*",
    *(f"path-exclude={file}" for file in FILES_LEFT_OUT),
    *(
        f"path-{rule}={prefix}/lib/modules/*/kernel/{name}*"
        for rule, names in (("exclude", MODULES_LEFT_OUT), ("include", MODULES_KEPT))
        for name in names
        for prefix in ("", "/usr")
    ),
)
"""Leaves out unused files, drivers, documentation and translations."""

INITRD_MODULES = ("virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "virtio_net")
"""Modules that the initrd loads with their dependencies: for the root disk and the network."""

UNITS_OFF = (
    "prometheus.service",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "cxl-monitor.service",
    "dkms.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty@tty1.service",
    "ndctl-monitor.service",
    "remote-fs.target",
    "systemd-pstore.service",
)
"""Units that are installed, but not started at boot. A test may start them."""

UNITS_MASKED = (
    # Not needed: the initrd has mounted the root read-write and set up the network.
    "systemd-remount-fs.service",
    "systemd-networkd.service",
    "systemd-network-generator.service",
    # This unit loads drivers for all hardware, which takes half of an emulated boot.
    # udevd itself runs, so udev rules apply to modules that are loaded later.
    "systemd-udev-trigger.service",
    # If /tmp were a tmpfs, files in it would take memory of the fast node.
    "tmp.mount",
    # The serial line is for the kernel log only.
    "serial-getty@ttyS0.service",
    # The units below are not needed, and each of them costs boot time.
    "systemd-logind.service",
    "systemd-user-sessions.service",
    "ldconfig.service",
    "systemd-journal-catalog-update.service",
    "systemd-update-done.service",
    "systemd-firstboot.service",
    "systemd-random-seed.service",
    "systemd-timesyncd.service",
    "systemd-tmpfiles-clean.timer",
    "systemd-tmpfiles-setup-dev-early.service",
    "systemd-udev-load-credentials.service",
    "systemd-journal-flush.service",
    "systemd-rfkill.socket",
    "kmod-static-nodes.service",
    "sshd-keygen.service",
    "dev-hugepages.mount",
    "dev-mqueue.mount",
    "run-lock.mount",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "modprobe@configfs.service",
    "modprobe@drm.service",
    "modprobe@fuse.service",
    "proc-sys-fs-binfmt_misc.automount",
    "systemd-ask-password-console.path",
    "systemd-ask-password-wall.path",
)
"""Masked units: nothing can start them."""

SSHD_CONFIG = """\
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
# A PAM session would start a login session through dbus for every command.
UsePAM no
UseDNS no
X11Forwarding no
PrintMotd no
PrintLastLog no
# All commands of a driver share one connection.
MaxSessions 256
AcceptEnv LANG LC_* SENTINEL*
Subsystem sftp internal-sftp
"""

SSHD_CONFIG_9_8 = f"""\
{SSHD_CONFIG}\
# Connection.answers() probes the server without a login, which would be penalised.
PerSourcePenalties no
"""
"""For OpenSSH 9.8 and later; older versions reject the unknown option."""

INIT_SCRIPT = f"""\
#!/bin/sh
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done < /modules/order
ip addr add {GUEST_ADDRESS} dev eth0
ip link set eth0 up
ip route add default via {GUEST_GATEWAY}
mount -t ext4 -o rw,noatime /dev/vda /root
mount -o move /dev /root/dev
exec switch_root /root /sbin/init
"""
"""/init of the initrd. Debian's own initrd starts udev and takes ten seconds longer."""

FILES: dict[str, str] = {
    "etc/hostname": f"{HOSTNAME}\n",
    "etc/hosts": f"127.0.0.1 localhost\n127.0.1.1 {HOSTNAME}\n::1 localhost\n",
    "etc/fstab": "",
    "etc/resolv.conf": f"nameserver {GUEST_NAMESERVER}\n",
    "etc/systemd/journald.conf.d/vm.conf": "[Journal]\nStorage=volatile\nForwardToSyslog=no\n",
    "etc/systemd/system.conf.d/vm.conf": "[Manager]\nDefaultTimeoutStartSec=300s\nShowStatus=no\n",
    "etc/systemd/system/ssh.service.d/vm.conf": "[Service]\nExecStartPre=\n",
    "etc/apt/apt.conf.d/90vm": 'APT::Periodic::Enable "0";\n',
}
"""Files written to every root tree after the packages are installed."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The content of one image."""

    suite: str
    """The image's name: a Debian suite."""
    packages: tuple[str, ...]
    sshd_config: str
    free_bytes: int
    """Free space in the root file system; sparse on the host's disk."""
    imports: str
    """Python code that imports the modules of Debian's packages that guests import. It runs once
    while the image is built, so that the modules' bytecode is cached: guests would take minutes to
    compile them."""
    release: str = ""
    """Name of the release that mmdebstrap installs; "": the same name as `suite`."""
    added_suite: str = ""
    """A suite whose packages are available beside those of `release`; "": only the suites that
    mmdebstrap uses by default are available."""
    early_files: tuple[tuple[str, str], ...] = ()
    """Path below root and text of files that are written before any package is installed."""

    @property
    def files(self) -> dict[str, str]:
        """The files of this image: path below root -> text."""
        return {**FILES, "etc/ssh/sshd_config": self.sshd_config}


MAIN = Recipe(
    suite="trixie",
    packages=MACHINE_PACKAGES + BACKEND_PACKAGES + PRODUCT_PACKAGES,
    sshd_config=SSHD_CONFIG_9_8,
    free_bytes=3 << 30,
    imports=(
        "import bcc, click.testing, numpy, prometheus_client.core, pyroute2, pytest, torch;"
        " import scipy.optimize, scipy.sparse, textual.app, textual.worker;"
        " from textual.widgets import DataTable, Input, Static; pytest.main(['--version'])"
    ),
)
"""Debian 13, kernel 6.12: for tests of the whole system."""

BOOKWORM = Recipe(
    suite="bookworm",
    packages=MACHINE_PACKAGES + BACKEND_PACKAGES,
    sshd_config=SSHD_CONFIG,
    free_bytes=1 << 30,
    imports="import numpy",
)
"""Debian 12, kernel 6.1: for tests of the module and the other backends."""

BACKPORTS = Recipe(
    suite="trixie-backports",
    # without initramfs-tools, apt would choose dracut for the newer kernel, and dracut is slower
    packages=(*MACHINE_PACKAGES, *BACKEND_PACKAGES, "initramfs-tools"),
    sshd_config=SSHD_CONFIG_9_8,
    free_bytes=1 << 30,
    imports="import numpy",
    release="trixie",
    added_suite="trixie-backports",
    early_files=(
        (
            "etc/apt/preferences.d/kernel",
            "Package: src:linux:any src:linux-signed-amd64:any linux-base\n"
            "Pin: release n=trixie-backports\n"
            "Pin-Priority: 900\n",
        ),
    ),
)
"""Debian 13 with the newest kernel of its backports: for tests of the module and the backends."""

RECIPES = {recipe.suite: recipe for recipe in (MAIN, BOOKWORM, BACKPORTS)}
"""All recipes, by suite. The cache keeps one image of each."""


def write_files(root: Path, files: dict[str, str]) -> None:
    """Write FILES (path below root -> text) to the tree; creates parent folders."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)
