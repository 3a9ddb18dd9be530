# SPDX-License-Identifier: Apache-2.0
"""Checks the kernel module with programs whose accesses are known (check/), on each kernel."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.fixtures import FreshGuest
from tests.vm.guest import TREE, Guest
from tests.vm.image import Image
from tests.vm.recipe import BACKPORTS, MAIN
from tests.vm.rootfs import BUILD_PLACE, MODULE, build_module, in_root

pytestmark = pytest.mark.guest

CHECK = "/root/kmod-check"
PLAIN = [
    "accesses",
    "births",
    "zero_page",
    "nodes",
    "disarm",
    "residency",
    "arguments",
    "log",
    "sparse",
    "huge",
    "epoch_fd",
    "fork",
    "close",
    "kill",
    "end",
    "unknown",
    "moved",
    "writes",
    "again",
    "age",
    "owner",
    "stalled",
    "busy",
    "stress",
]
SPECIAL = ["swap", "tracepoint", "unhooked", "locked", "hooking", "race"]
"""The checks that need a special state of the machine."""

UNLOADING = f"""
set -e
insmod {TREE}/{MODULE}
exec 3<>/dev/sentinel
! rmmod sentinel 2>/dev/null
{CHECK} zero_page
exec 3>&-
while :; do /bin/true; done & faults=$!
trap 'kill $faults' EXIT
for round in 1 2 3; do
    rmmod sentinel
    insmod {TREE}/{MODULE}
    {CHECK} zero_page
done
"""

UNHOOKED = f"""
set -e
sysctl -q -w kernel.ftrace_enabled=0
{CHECK} unhooked
sysctl -q -w kernel.ftrace_enabled=1
{CHECK} zero_page
"""

SWAP = f"""
set -e
dd if=/dev/zero of=/root/swap bs=1M count=64 status=none
chmod 600 /root/swap
mkswap -q /root/swap
swapon /root/swap
trap 'swapoff /root/swap; rm /root/swap' EXIT
{CHECK} swap
"""


SAMPLER = """
import os, subprocess, time
from pathlib import Path
from sentineld.base.errors import SentinelError
from sentineld.observe.page_sampler import PageSampler
from sentineld.observe.pidfd import start_time_ticks

user = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", "sleep", "1000"]
process = subprocess.Popen(user)
while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\\n":
    time.sleep(0.01)
started = start_time_ticks(process.pid)

def attach(**expected):
    with PageSampler() as sampler:
        try:
            sampler.attach(process.pid, **expected)
        except SentinelError as error:
            return error.code
    return "attached"

print(attach(uid=0), attach(uid=1001), attach(uid=1000, start_ticks=started - 1),
      attach(uid=1000, start_ticks=started), attach())
process.kill()
process.wait()
print(attach(uid=1000, start_ticks=started), attach())
"""


@pytest.fixture(scope="session")
def program(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The check program, built with the guest's compiler."""
    place = tmp_path_factory.mktemp("kmod-check")
    source = "/root/sentineld/tests/vm/kmod/check"
    make = f"make -C {source} OUT={BUILD_PLACE}/kmod-check"
    in_root(make, {place: BUILD_PLACE}, image=image)
    return place / "kmod-check"


@pytest.fixture
def checked(kernel_guest: Guest, program: Path) -> Guest:
    """A shared guest with the check program."""
    if kernel_guest.run(f"test -x {CHECK}", check=False).returncode != 0:
        kernel_guest.put(program, CHECK)
    return kernel_guest


def test_the_module_builds_without_warnings_of_gcc_and_sparse(image: Image, suite: str) -> None:
    folder = build_module(image=image).parent  # raises MachineError if there is a warning
    log = folder.with_suffix(".log").read_text()
    # Debian's sparse is too old for the newest kernel, whose build therefore does not run sparse.
    if suite != BACKPORTS.suite:
        assert log.count("CHECK") >= len(list(folder.glob("*.c"))) - 1


@pytest.fixture
def patched_guest(request: pytest.FixtureRequest, image: Image, suite: str) -> Iterator[Guest]:
    """A guest without the module, whose emulator supports code that is patched at run time: for the
    main image's suite, the shared guest of the fixture `guest`; for other suites, a fresh one."""
    if suite == MAIN.suite:
        guest: Guest = request.getfixturevalue("guest")
        guest.run("rmmod sentinel")
        yield guest
        guest.run(f"insmod {TREE}/{MODULE}")
        guest.check_kernel_log()
    else:
        boot: FreshGuest = request.getfixturevalue("fresh_guest")
        guest = boot(tcg_thread="single", fast_mib=1024, slow_mib=512, image=image)
        guest.put(build_module(image=image), f"{TREE}/{MODULE}")
        yield guest


# This test comes before the other tests that need a guest: booting a fresh guest closes the guest
# that they share.
def test_loading_unloading_hooking_and_the_tracepoint(
    patched_guest: Guest, suite: str, program: Path
) -> None:
    # In this test, sessions often begin when there is no other session, and end as the last one.
    # Each time, the module patches running code.
    guest = patched_guest
    guest.put(program, CHECK)
    guest.run(UNLOADING)
    guest.run(f"{CHECK} tracepoint")
    if suite == BACKPORTS.suite:
        # the newest kernel cannot disable ftrace
        assert guest.run("sysctl -w kernel.ftrace_enabled=0", check=False).returncode != 0
    else:
        guest.run(UNHOOKED)
    guest.run(f"{CHECK} hooking race")
    guest.run("rmmod sentinel")


def test_the_list_of_checks_is_complete(checked: Guest) -> None:
    assert checked.run(CHECK).stdout.split() == PLAIN + SPECIAL


@pytest.mark.parametrize("name", PLAIN)
def test_check_passes(checked: Guest, capsys: pytest.CaptureFixture[str], name: str) -> None:
    output = checked.run([CHECK, name]).stdout
    with capsys.disabled():
        print(f"\n{output}", end="")


def test_swapped_in_pages_are_accesses_and_not_births(checked: Guest) -> None:
    checked.run(SWAP)


def test_a_target_that_keeps_its_address_space_locked_does_not_block_close(checked: Guest) -> None:
    checked.run(f"modprobe fuse && {CHECK} locked")


def test_the_daemons_interface_attaches_only_the_expected_process(kernel_guest: Guest) -> None:
    output = kernel_guest.run(f"cd {TREE} && python3 -c {shlex.quote(SAMPLER)}").stdout
    refused, gone = "not-permitted not-permitted no-such-process", "no-such-process no-such-process"
    assert output.splitlines() == [f"{refused} attached attached", gone]


def test_the_device_is_for_root_only(kernel_guest: Guest) -> None:
    assert kernel_guest.run("stat -c '%a %U %G' /dev/sentinel").stdout.split() == [
        "600",
        "root",
        "root",
    ]
