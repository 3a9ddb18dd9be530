# SPDX-License-Identifier: Apache-2.0
"""Reading the daemon's whole configuration. test_daemon.py covers the option --check."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.service.configuration import read_config


def test_the_options_are_applied(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('fast = "30%"\n')
    config = read_config(file, "emulated:cxl")
    assert (config.fast, config.tiers.emulated) == ("30%", "cxl")


@pytest.mark.parametrize(
    ("policy", "problem"),
    [("autoo", "no policy is named 'autoo'"), ("tpp", "tpp runs in the simulator only")],
)
def test_the_policies_of_rules_are_checked(tmp_path: Path, policy: str, problem: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[[attach]]\npolicy = "auto"\n[[attach]]\npolicy = "{policy}"\n')
    with pytest.raises(SentinelError) as caught:
        read_config(file, None)
    assert caught.value.code == "bad-config"
    assert caught.value.message == f"{file}: attach rule 2: policy: {problem}"
