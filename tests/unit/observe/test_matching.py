# SPDX-License-Identifier: Apache-2.0
"""Which of the configuration's attach rules matches a process.

Some tests read the real files of a process in /proc, the others files that the test writes.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from sentineld.model.attach_rule import AttachRule
from sentineld.observe.matching import COMMAND_BYTES_MAX, Candidate, matching_rule

V2 = "0::/system.slice/slurmstepd.scope/job_7/step_0\n"
HYBRID = "12:cpu,memory:/ml/a\n1:name=systemd:/ml.slice/train@7.service\n0::/\n"
USERS_OWN = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/train.service\n"
ESCAPED = "0::/_ml.slice/_cpu.service\n"


def candidate(folder: Path, cgroup: str = "0::/\n", cmdline: bytes = b"") -> Candidate:
    (folder / "7").mkdir()
    (folder / "7/cgroup").write_text(cgroup)
    (folder / "7/cmdline").write_bytes(cmdline)
    return Candidate(7, 1000, folder)


def matches(found: Candidate, **conditions: str) -> bool:
    return matching_rule([AttachRule(**conditions)], found) is not None


def test_the_first_rule_that_matches_applies(tmp_path: Path) -> None:
    rules = [AttachRule(user="1"), AttachRule(user="1000"), AttachRule(), AttachRule()]
    found = candidate(tmp_path)
    assert matching_rule(rules, found) is rules[1]
    assert matching_rule(rules[2:], found) is rules[2]
    assert matching_rule(rules[:1], found) is None


def test_all_conditions_of_a_rule_must_hold(tmp_path: Path) -> None:
    found = candidate(tmp_path, V2, b"python3\0train.py\0")
    wanted = {"user": "1000", "unit": "slurmstepd.scope", "command": "python3 *"}
    assert matches(found, **wanted)
    for key in wanted:
        assert not matches(found, **{**wanted, key: "99"})


def test_a_user_is_named_or_numbered() -> None:
    own = Candidate(os.getpid(), os.getuid())
    assert matches(own, user=pwd.getpwuid(os.getuid()).pw_name)
    assert matches(own, user=str(os.getuid()))
    assert not matches(own, user=str(os.getuid() + 1))
    assert not matches(own, user="no-such-user")


@pytest.mark.parametrize(
    ("cgroup", "pattern", "expected"),
    [
        (V2, "/system.slice/slurmstepd.scope/job_7/step_0", True),
        (V2, "/system.slice/slurmstepd.scope/job_*", True),
        (V2, "/system.slice/", True),
        (V2, "/*/*/job_7", True),
        (V2, "/system.slice/job_7", False),
        (V2, "/*/job_7", False),
        (V2, "/system", False),
        (V2, "/system.slice/slurmstepd.scope/job_7/step_0/task", False),
        (HYBRID, "/ml/a", True),
        (HYBRID, "/ml.slice", True),
        (HYBRID, "/", False),
        ("0::/\n", "/*", False),
        ("", "/*", False),  # no hierarchy is mounted
    ],
)
def test_a_cgroup_is_matched_with_its_descendants(
    tmp_path: Path, cgroup: str, pattern: str, expected: bool
) -> None:
    assert matches(candidate(tmp_path, cgroup), cgroup=pattern) == expected


@pytest.mark.parametrize(
    ("cgroup", "pattern", "expected"),
    [
        (V2, "slurmstepd.scope", True),
        (V2, "slurmstepd", False),
        (V2, "system.slice", True),
        (V2, "job_7", False),
        (HYBRID, "train@7", True),
        (HYBRID, "train@*", True),
        (HYBRID, "ml.slice", True),
        (USERS_OWN, "user@1000.service", True),
        # A unit of a user's systemd instance (systemd --user) can have the name of a system unit.
        (USERS_OWN, "train.service", False),
        (USERS_OWN, "app.slice", False),
        (ESCAPED, "cpu", True),
        ("", "*", False),  # no hierarchy is mounted
        (ESCAPED, "ml.slice", True),
        ("0::/\n", "*", False),
        ("0::/kubepods/burstable\n", "*", False),
    ],
)
def test_a_unit_is_one_of_the_systems_manager(
    tmp_path: Path, cgroup: str, pattern: str, expected: bool
) -> None:
    assert matches(candidate(tmp_path, cgroup), unit=pattern) == expected


@pytest.mark.parametrize(
    ("cmdline", "pattern", "expected"),
    [
        (b"python3\0train.py\0--epochs\0003\0", "*train.py*", True),
        (b"python3\0train.py\0--epochs\0003\0", "python3 train.py --epochs 3", True),
        (b"python3\0train.py\0", "train.py", False),
        (b"python3\0TRAIN.py\0", "*train.py", False),
        (b"python3\0\xff\0", "python3 ?", True),
        (b"", "*", True),
    ],
)
def test_a_command_is_matched_as_a_whole(
    tmp_path: Path, cmdline: bytes, pattern: str, expected: bool
) -> None:
    assert matches(candidate(tmp_path, cmdline=cmdline), command=pattern) == expected


def test_a_long_command_line_is_read_in_part(tmp_path: Path) -> None:
    found = candidate(tmp_path, cmdline=b"x" * (COMMAND_BYTES_MAX + 1))
    assert len(found.command) == COMMAND_BYTES_MAX


def test_the_files_of_a_real_process_are_read() -> None:
    command = [sys.executable, "-c", "input(1)", "train.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        # Its output shows that the program runs. Until then, its command line can be empty.
        assert child.stdout.read(1) == b"1"
        found = Candidate(child.pid, os.getuid())
        assert matches(found, command=f"{sys.executable} -c input(1) train.py")
        assert found.cgroups == Candidate(os.getpid(), os.getuid()).cgroups
        child.communicate(b"\n")
    with pytest.raises(ProcessLookupError):
        matches(Candidate(child.pid, os.getuid()), cgroup="/*")


def test_nothing_is_read_that_no_rule_compares(tmp_path: Path) -> None:
    gone = Candidate(7, 1000, tmp_path)
    assert matches(gone, user="1000")
    assert not matches(gone, user="1", command="*")
