# SPDX-License-Identifier: Apache-2.0
"""The two-tier machine: a guest with fast and slow memory nodes, of Debian 13 or 12.

`recipe` says what is in each image, `image` builds and caches them, `qemu` makes
the command line, `accel` finds KVM or falls back to TCG, `guest` boots and
drives one machine, `rootfs` builds the project's C parts natively in the
image's root tree. `python3 -m tests.vm --help` is the command line.

Everything here runs with the standard library alone, as root.
"""
