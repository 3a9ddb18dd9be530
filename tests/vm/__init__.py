# SPDX-License-Identifier: Apache-2.0
"""The two-tier machine: a guest with Debian 13 or 12, and with a fast and a slow memory node.

`recipe` defines the content of each image, `image` builds and caches the images, `qemu` makes
QEMU's command line, `accel` selects KVM or TCG, `guest` boots and drives one machine, `rootfs`
builds the project's C parts (the kernel module and the shim's library) natively in the image's root
tree.
`python3 -m tests.vm --help` lists this package's verbs.

These modules import only Python's standard library. They need root privileges and the programs
in `host.TOOLS`.
"""
