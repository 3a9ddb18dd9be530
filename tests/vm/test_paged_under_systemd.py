# SPDX-License-Identifier: Apache-2.0
"""A user's training on paged tiers, under the installed unit with its sandbox.

The guest's kernel can move pages with userfaultfd. The user gets access to /dev/userfaultfd by the
udev rule that `sentinelctl doctor` and the daemon's errors show.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from sentineld.config import Config
from sentineld.host.userfaultfd import DEVICE, UDEV_RULE

from .guest import Guest
from .rootfs import in_root
from .training import (
    FOR_USERS,
    NO_EBPF,
    PORTABLE,
    TRAINING,
    USERS_FOLDER,
    WITHOUT_EBPF,
    Training,
    metrics,
    training_in,
    wait,
)

pytestmark = [pytest.mark.guest, pytest.mark.second, pytest.mark.long]

PAGED = "/etc/sentineld/config.d/paged.toml"
ONTO_DISK = f"printf '[tiers]\\npaged = \"{Config().state_dir}\"\\n' > {PAGED}"
"""Makes the next start of the daemon use paged tiers, with the files in the daemon's state folder:
the unit's sandbox makes most other folders read-only."""
RULE = "/etc/udev/rules.d/70-sentineld.rules"
APPLY_RULES = f"udevadm control --reload && udevadm trigger --settle {DEVICE}"
FAST = "50%"
RUN = f"setpriv --reuid pager --regid pager --init-groups sentinelctl run --fast {FAST} --"


@pytest.fixture(scope="module")
def paged(installed: Guest) -> Iterator[Guest]:
    """The guest with the daemon on paged tiers, and with the user `pager`."""
    guest = installed
    guest.run("systemctl stop sentineld; id pager 2>/dev/null || useradd -G sentineld pager")
    guest.run(f"{WITHOUT_EBPF}; {ONTO_DISK}; {FOR_USERS}")  # other tests cover eBPF
    guest.run("systemctl start sentineld", timeout=180)
    yield guest
    guest.run(f"systemctl stop sentineld; rm {NO_EBPF} {PAGED}")


@pytest.fixture(scope="module")
def training(paged: Guest) -> Iterator[Training]:
    """The user's training. The first test stops the command `sentinelctl run` by SIGSTOP, because
    this command polls the daemon, which takes CPU time."""
    paged.run(["sh", "-c", f"echo '{UDEV_RULE}' > {RULE}; {APPLY_RULES}"])
    started = Training(
        paged,
        f"{PORTABLE} {RUN} python3",
        training_in(USERS_FOLDER),
    )
    yield started
    started.process.send_remote("CONT")
    started.end()
    paged.run(f"rm {RULE}; {APPLY_RULES}; chown root:root {DEVICE}; chmod 600 {DEVICE}")


def paging(training: Training) -> dict[str, int]:
    """The pager's counters. Asserts that the pager stayed within its budget, and that no write
    failed."""
    session: dict[str, Any] | None = training.session()
    assert session is not None
    counts: dict[str, int] = session["paging"]
    assert counts["frames"] <= counts["budget_pages"]
    assert counts["overruns"] == counts["write_error"] == 0
    return counts


def test_the_training_is_managed(training: Training) -> None:
    wait("attached", lambda: not training.in_state("registered"), 480)
    training.process.send_remote("STOP")
    wait("managed", lambda: training.in_state("managed"), 900)
    training.expect_another_step()


def test_its_pages_are_written_and_read_back(training: Training) -> None:
    def moved() -> list[float]:
        samples = r"^sentineld_paging_bytes_total{.*} (\S+)$"
        found = re.findall(samples, metrics(training.guest), re.MULTILINE)
        return [float(value) for value in found]

    before = moved()
    assert len(before) == 2
    wait(
        "pages read and written",
        lambda: all(a > b for a, b in zip(moved(), before, strict=True)),
        240,
    )
    paging(training)


def test_the_losses_equal_those_of_an_unpaged_run(training: Training) -> None:
    training.process.send_remote("CONT")
    training.end()
    losses = training.losses()
    assert len(losses) > 1
    plain = in_root(f"{PORTABLE} python3 {TRAINING} --steps {len(losses)}").stdout
    assert re.findall(r"loss (\S+)", plain) == losses
