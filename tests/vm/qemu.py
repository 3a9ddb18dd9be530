# SPDX-License-Identifier: Apache-2.0
"""The QEMU 7.2 command line of a machine with two or three memory tiers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from .image import Image

Variant = Literal["two-tier", "three-tier"]
Accelerator = Literal["kvm", "tcg"]

VARIANTS: tuple[Variant, ...] = ("two-tier", "three-tier")

KERNEL_ARGUMENTS = (
    "net.ifnames=0",
    "console=ttyS0 loglevel=7 printk.time=1",
    # The serial line is for the kernel log only; systemd logs to its journal.
    "systemd.show_status=0 systemd.log_target=journal",
    # The kernel reboots after a panic. With -no-reboot, QEMU exits instead, which Guest detects.
    "panic=-1",
    # With two guests on two cores, an emulated CPU can stall for a long time although the kernel is
    # correct. These options raise the times after which the kernel reports a stall.
    "watchdog_thresh=60 rcupdate.rcu_cpu_stall_timeout=120",
    # These options save time: no mitigations, no self-tests of crypto, no audit messages.
    "mitigations=off cryptomgr.notests audit=0",
    # The emulator translates code once for each virtual address. Without address space
    # randomization, processes share the translations. This reduces the time to start a process to a
    # third, and the time to import torch to four fifths.
    "norandmaps",
    # These options avoid loading modules: under emulation, each takes most of a second to load.
    "systemd.ssh_auto=0 systemd.getty_auto=0 systemd.gpt_auto=0",
    "module_blacklist=vsock,vmw_vmci,ip_tables,qemu_fw_cfg,autofs4",
)

EMULATED_CPU = "max,-avx2,-erms"
"""QEMU 7.2 has bugs in AVX2: numpy's vectorised sorts sometimes crash. It emulates `rep movsb` and
`rep stosb` byte by byte. The kernel and glibc copy and clear large blocks with these instructions
if the CPU has the feature ERMS, and with wider ones if it does not."""


@dataclasses.dataclass(frozen=True)
class NodeSpeed:
    """A node's latency, and its bandwidth in gigabytes per second, in the firmware's HMAT. The
    kernel derives the tiers from these values."""

    latency_ns: int
    bandwidth_gigabytes: int


FAST = NodeSpeed(latency_ns=80, bandwidth_gigabytes=100)
SLOW = NodeSpeed(latency_ns=250, bandwidth_gigabytes=30)
SLOWEST = NodeSpeed(latency_ns=350, bandwidth_gigabytes=10)
"""FAST is DRAM on the socket, SLOW is memory behind a CXL link, SLOWEST is persistent memory.
These values only describe the nodes: the emulator serves all nodes at the same speed."""

SLOWEST_NODE = 2
"""The node of the persistent memory in the three-tier variant."""


@dataclasses.dataclass(frozen=True)
class Hardware:
    """The hardware of a guest. All fields except `accelerator` are also arguments of Guest; see its
    docstring."""

    variant: Variant = "two-tier"
    fast_mib: int = 2048
    slow_mib: int = 1024
    slowest_mib: int = 1024
    cpus: int = 2
    accelerator: Accelerator = "tcg"
    tcg_thread: Literal["multi", "single"] = "multi"
    icount: bool = False
    plugin: str | None = None
    extra: tuple[str, ...] = ()


def command_line(
    image: Image, hardware: Hardware, ssh_port: int, work: Path, kernel_log: Path
) -> list[str]:
    """The command that boots `hardware` from `image`. work: a folder for the guest's files.

    Writes to the root disk go to a temporary overlay, so guests can share an image.
    """
    three = hardware.variant == "three-tier"
    accelerator = hardware.accelerator
    if accelerator == "tcg":
        accelerator_option = f"tcg,thread={hardware.tcg_thread}"
    else:
        accelerator_option = "kvm"
    memory = f"{hardware.fast_mib + hardware.slow_mib}M"
    machine = "q35,hmat=on,sata=off,smbus=off"
    if three:
        total = hardware.fast_mib + hardware.slow_mib + hardware.slowest_mib
        memory += f",slots=2,maxmem={total + 1024}M"
        machine += ",nvdimm=on"
    command = ["qemu-system-x86_64", "-nodefaults", "-no-reboot", "-display", "none"]
    command += ["-machine", machine, "-accel", accelerator_option]
    if hardware.icount:
        # Each instruction advances guest time and the time stamp counter by one nanosecond.
        command += ["-icount", "shift=0,sleep=on"]
    command += ["-cpu", EMULATED_CPU if accelerator == "tcg" else "max"]
    command += ["-smp", f"{hardware.cpus},sockets=1", "-m", memory]
    command += _node_options(hardware)
    if three:
        backing = work / "persistent-memory"
        command += [
            "-object",
            f"memory-backend-file,id=nvm0,share=on,mem-path={backing},size={hardware.slowest_mib}M",
            "-device",
            f"nvdimm,id=nvdimm0,memdev=nvm0,node={SLOWEST_NODE}",
        ]
    command += ["-kernel", str(image.kernel), "-initrd", str(image.initrd)]
    command += ["-append", " ".join(KERNEL_ARGUMENTS)]
    command += ["-drive", f"file={image.disk},format=raw,if=none,id=root,snapshot=on,cache=unsafe"]
    command += ["-device", "virtio-blk-pci,drive=root"]
    command += ["-netdev", f"user,id=net0,hostfwd=tcp:127.0.0.1:{ssh_port}-:22"]
    command += ["-device", "virtio-net-pci,netdev=net0,romfile="]
    command += ["-serial", f"file:{kernel_log}", "-monitor", "none"]
    if hardware.plugin:
        # A plugin's output goes to QEMU's log.
        command += ["-plugin", hardware.plugin, "-d", "plugin", "-D", str(work / "plugin.log")]
    return [*command, *hardware.extra]


def _node_options(hardware: Hardware) -> list[str]:
    """QEMU's options for the nodes: node 0 has CPUs and fast memory, node 1 only slow memory.

    Node 2 of the three-tier variant has no memory at boot: guest.THREE_TIER_SETUP onlines the
    persistent memory there later.
    """
    last_cpu = hardware.cpus - 1
    options = [
        "-object",
        f"memory-backend-ram,id=m0,size={hardware.fast_mib}M",
        "-object",
        f"memory-backend-ram,id=m1,size={hardware.slow_mib}M",
        "-numa",
        f"node,nodeid=0,memdev=m0,cpus=0-{last_cpu},initiator=0",
        "-numa",
        "node,nodeid=1,memdev=m1,initiator=0",
    ]
    distances = {(0, 1): 20}
    speeds = {0: FAST, 1: SLOW}
    if hardware.variant == "three-tier":
        options += ["-numa", f"node,nodeid={SLOWEST_NODE},initiator=0"]
        distances |= {(0, SLOWEST_NODE): 40, (1, SLOWEST_NODE): 40}
        speeds[SLOWEST_NODE] = SLOWEST
    for (source, target), value in distances.items():
        options += ["-numa", f"dist,src={source},dst={target},val={value}"]
    for node, speed in speeds.items():
        prefix = f"hmat-lb,initiator=0,target={node},hierarchy=memory"
        latency = f"data-type=access-latency,latency={speed.latency_ns}"
        bandwidth = f"data-type=access-bandwidth,bandwidth={speed.bandwidth_gigabytes}G"
        options += ["-numa", f"{prefix},{latency}", "-numa", f"{prefix},{bandwidth}"]
    return options
