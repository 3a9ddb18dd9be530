# SPDX-License-Identifier: Apache-2.0
"""The cgroup of a unit, from answers of `systemctl show` of systemd 252."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.host.systemd_unit import cgroup_in, unit_cgroup

ACTIVE = "LoadState=loaded\nActiveState=active\nControlGroup=/system.slice/cron.service\n"


def refused(text: str) -> SentinelError:
    with pytest.raises(SentinelError) as caught:
        cgroup_in(text, "cron")
    return caught.value


def test_the_cgroup_of_an_active_unit() -> None:
    assert cgroup_in(ACTIVE, "cron") == "/system.slice/cron.service"


def test_units_that_cannot_be_managed() -> None:
    missing = refused("LoadState=not-found\nActiveState=inactive\nControlGroup=\n")
    assert missing.code == "no-such-process"
    assert "there is no unit cron" in missing.message
    inactive = refused("LoadState=loaded\nActiveState=inactive\nControlGroup=\n")
    assert inactive.code == "wrong-state"
    assert "unit cron is inactive" in inactive.message
    assert "systemctl start cron" in inactive.hint
    assert "is failed" in refused("LoadState=loaded\nActiveState=failed\n").message
    # "": a mount unit, which has no processes. "/": the root slice, which has all processes of the
    # machine.
    for group in ("", "/"):
        error = refused(f"LoadState=loaded\nActiveState=active\nControlGroup={group}\n")
        assert "no cgroup of its own" in error.message
    assert "unknown state" in refused("").message


@pytest.mark.parametrize("name", ["", "a b", "a/b", "*", "x\n", "a;b"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(SentinelError) as caught:
        unit_cgroup(name)
    assert caught.value.code == "usage"


def test_systemctl_is_asked_for_the_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script takes the place of systemctl, because systemd does not run on every machine."""
    script = tmp_path / "systemctl"
    script.write_text(
        "#!/bin/sh\n"
        '[ "$*" = "show --property=LoadState,ActiveState,ControlGroup -- web@1.service" ] &&\n'
        "echo LoadState=loaded && echo ActiveState=active && echo ControlGroup=/a.slice/web\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert unit_cgroup("web@1.service") == "/a.slice/web"
    script.write_text("#!/bin/sh\necho 'Failed to connect to bus: no medium' >&2\nexit 1\n")
    with pytest.raises(SentinelError, match="Failed to connect to bus") as caught:
        unit_cgroup("web@1.service")
    assert caught.value.code == "failed"


def test_a_missing_systemctl_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SentinelError, match="there is no systemctl") as caught:
        unit_cgroup("cron")
    assert "--cgroup" in caught.value.hint


def test_a_unit_that_systemd_does_not_know() -> None:
    name = "sentineld-test-missing.service"
    try:
        subprocess.run(["systemctl", "show", "-p", "Version"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        expected = "cannot be looked up"
    else:
        expected = "there is no unit"
    with pytest.raises(SentinelError, match=expected):
        unit_cgroup(name)
