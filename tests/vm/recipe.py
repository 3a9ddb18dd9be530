# SPDX-License-Identifier: Apache-2.0
"""What the guest image holds. The image cache is keyed by this file's bytes."""

from __future__ import annotations

from pathlib import Path

SUITE = "trixie"
"""Debian 13. mmdebstrap finds the mirror of a named suite itself."""

HOSTNAME = "sentinel-vm"

GUEST_ADDRESS = "10.0.2.15/24"
GUEST_GATEWAY = "10.0.2.2"
"""QEMU's user-mode network gives every guest the same addresses."""

PACKAGES = (
    # the machine
    "systemd-sysv",
    "systemd",
    "udev",
    "dbus",
    "kmod",
    "procps",
    "iproute2",
    "curl",
    "openssh-server",
    "linux-image-amd64",
    "linux-headers-amd64",
    "initramfs-tools",
    "lz4",
    # the tiers
    "numactl",
    "ndctl",
    "daxctl",
    # building the module and the shim's C object
    "gcc",
    "libc6-dev",
    "make",
    "dkms",
    # what the daemon, the CLI and the trainers import
    "python3",
    "python3-bpfcc",
    "python3-click",
    "python3-numpy",
    "python3-prometheus-client",
    "python3-pyroute2",
    "python3-pytest",
    "python3-scipy",
    "python3-torch",
    # what scrapes it
    "prometheus",
)

DPKG_OPTIONS = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/lintian/*",
)
"""No documentation and no translations: a third of the small files."""

INITRAMFS_MODULES = ("virtio_pci", "virtio_blk", "ext4")
"""All that an initrd needs to mount the root disk. A full one costs seconds of
emulated decompression at each boot."""

FREE_BYTES = 3 << 30
"""Room left in the root file system, sparse on the build machine's disk."""

SYSTEMD_UNITS_OFF = (
    "prometheus.service",
    "prometheus-node-exporter.service",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "remote-fs.target",
    "systemd-pstore.service",
    "getty@tty1.service",
    "console-getty.service",
    "dkms.service",
    "ndctl-monitor.service",
    "daxdev-reconfigure.service",
    "systemd-networkd-wait-online.service",
)
"""Installed but not started at boot; a test may start them."""

SYSTEMD_UNITS_MASKED = (
    "systemd-logind.service",
    "systemd-firstboot.service",
    "systemd-timesyncd.service",
    "systemd-binfmt.service",
    "systemd-hwdb-update.service",
    "serial-getty@ttyS0.service",
    "systemd-rfkill.socket",
    "sshd-keygen.service",
)
"""Nothing in the guest needs these, and under emulation each costs boot time.
The serial line carries the kernel log and nothing else, hence no getty."""

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

NETWORK_UNIT = f"""\
[Match]
Name=eth0

[Network]
Address={GUEST_ADDRESS}
Gateway={GUEST_GATEWAY}
LinkLocalAddressing=no
IPv6AcceptRA=no
"""

FILES: dict[str, str] = {
    "etc/hostname": f"{HOSTNAME}\n",
    "etc/hosts": f"127.0.0.1 localhost\n127.0.1.1 {HOSTNAME}\n::1 localhost\n",
    "etc/fstab": "/dev/vda / ext4 rw,noatime 0 0\n",
    "etc/resolv.conf": "nameserver 10.0.2.3\n",
    "etc/systemd/network/10-eth0.network": NETWORK_UNIT,
    "etc/systemd/journald.conf.d/vm.conf": "[Journal]\nStorage=volatile\nForwardToSyslog=no\n",
    "etc/systemd/system.conf.d/vm.conf": "[Manager]\nDefaultTimeoutStartSec=300s\nShowStatus=no\n",
    "etc/ssh/sshd_config": SSHD_CONFIG,
    "etc/apt/apt.conf.d/90vm": 'APT::Periodic::Enable "0";\n',
}
"""Plain files written into the root tree after the packages are in."""

INITRAMFS_FILES: dict[str, str] = {
    "etc/initramfs-tools/conf.d/vm": "MODULES=list\nCOMPRESS=lz4\nFSTYPE=ext4\n",
    "usr/share/initramfs-tools/modules.d/vm": "".join(f"{m}\n" for m in INITRAMFS_MODULES),
}
"""Written before the kernel package is configured, since that makes the initrd."""


def write_files(root: Path, files: dict[str, str]) -> None:
    """Write FILES (path below root -> text) into the tree, parents included."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)
