# SPDX-License-Identifier: Apache-2.0
"""`sentinelctl calibrate` on this machine with small buffers: output and refusals."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sentineld.base.errors import SentinelError
from sentineld.cli.calibrate import HEAD, Found, check_ours, write
from sentineld.cli.main import sentinelctl
from sentineld.config import load
from sentineld.host.presets import configured_tiers
from sentineld.host.sysfs import memory_nodes
from sentineld.migrate.bandwidth import NodeRates
from sentineld.migrate.calibrate import Rates
from sentineld.model.tiers import Tier, Tiers

NODES = memory_nodes(Path("/sys")) or (0,)
NOBODY = 65534
SMALL = ("--size", "1MiB", "--threads", "1")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(sentinelctl, ["calibrate", *map(str, arguments)])


def refused(*arguments: str | Path) -> SentinelError:
    error = run(*arguments).exception
    assert isinstance(error, SentinelError), error
    assert error.hint
    return error


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """An empty configuration file, so that the machine's configuration is not read."""
    file = tmp_path / "config.toml"
    file.write_text("")
    return file


def test_a_variant_of_the_timing_model_may_await_the_calibrated_figures(
    tmp_path: Path, config: Path
) -> None:
    config.write_text('[tiers]\noverlap = "compute"\nmoves_yield = true\n')
    assert run(*SMALL, "--config", config, "-o", tmp_path / "new.toml").exit_code == 0


def test_the_daemon_reads_back_the_calibrated_file(tmp_path: Path, config: Path) -> None:
    file = tmp_path / "config.d" / "40-calibrated.toml"
    result = run(*SMALL, "--config", config, "-o", file, "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.output)
    assert answer["written"] == str(file)
    assert [one["node"] for one in answer["nodes"]] == list(NODES)
    tiers = load(config).tiers
    for key, value in answer["tiers"].items():
        assert getattr(tiers, key) == (tuple(value) if isinstance(value, list) else value)
    assert tiers.fast_read_bytes_per_s > 0
    assert tiers.fast_write_bytes_per_s > 0
    if len(NODES) == 1:
        assert tiers.slow_read_bytes_per_s == 0
        assert "one tier only" in answer["missing"][0]
        assert "# Not measured: the slow tier" in file.read_text()


def test_only_files_written_by_calibrate_are_overwritten(tmp_path: Path, config: Path) -> None:
    file = tmp_path / "mine.toml"
    for _ in range(2):
        assert run(*SMALL, "--config", config, "-o", file).exit_code == 0
    assert file.read_text().startswith(HEAD)
    assert set(tmp_path.iterdir()) == {config, file}
    file.write_text("[tiers]\nfast = [0]\n")
    assert "not written by calibrate" in str(refused(*SMALL, "-o", file))
    assert file.read_text() == "[tiers]\nfast = [0]\n"


def test_a_dry_run_writes_nothing(tmp_path: Path, config: Path) -> None:
    file = tmp_path / "none.toml"
    result = run(*SMALL, "--config", config, "-o", file, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "NODE" in result.output
    assert "fast_read_bytes_per_s" in result.output
    assert not file.exists()


def test_bad_sizes_and_missing_configs_are_refused(tmp_path: Path) -> None:
    assert refused("--size", "4KiB", "--dry-run").code == "usage"
    assert refused("--size", "much", "--dry-run").code == "usage"
    missing = tmp_path / "none.toml"
    assert refused(*SMALL, "--dry-run", "--config", missing).code == "bad-config"


def test_an_unwritable_folder_is_not_permitted() -> None:
    child = os.fork()
    if child == 0:
        outcome = "nothing"
        try:
            if os.geteuid() == 0:
                os.setuid(NOBODY)
            check_ours(Path("/etc/sentineld-unwritable/file.toml"))
        except SentinelError as error:
            outcome = error.code
        finally:
            os._exit(outcome != "not-permitted")
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_bandwidths_of_two_tiers_are_averaged_and_rounded(tmp_path: Path) -> None:
    found = Found(
        threads=4,
        nodes=(
            NodeRates(0, 50e9, 40e9, 3e9),
            NodeRates(1, 54.4321e9, 42e9, 3e9),
            NodeRates(2, 10e9, 5e9, 1e9),
        ),
        tiers=Tiers((Tier((0, 1), 0), Tier((2,), 0)), 1e9, "toy"),
        migration={64: Rates(1e9, 1e9), 2048: Rates(4e9, 3e9)},
        birth_ns_per_byte=0.1234,
        missing=(),
    )
    file = tmp_path / "config.toml"
    file.write_text(found.toml())
    tiers = load(file).tiers
    assert (tiers.fast, tiers.slow) == ((0, 1), (2,))
    # The mean of nodes 0 and 1, rounded to three significant digits.
    assert tiers.fast_read_bytes_per_s == 52.2e9
    assert tiers.slow_write_bytes_per_s == 5e9
    # The bandwidth of the slower direction, measured with batches of the size that the daemon uses.
    assert tiers.migration_bytes_per_s == 3e9
    assert configured_tiers(tiers).tiers[1].read_bytes_per_s == 10e9
    assert configured_tiers(tiers).birth_ns_per_byte == 0.123


@pytest.mark.parametrize(("mode", "expected"), [(None, (0o600, 0o700)), (0o644, (0o644, 0o755))])
def test_the_daemons_configuration_can_be_read_by_all_users(
    tmp_path: Path, mode: int | None, expected: tuple[int, int]
) -> None:
    file = tmp_path / "config.d" / "40-calibrated.toml"
    before = os.umask(0o077)
    try:
        write("", file, mode)
    finally:
        os.umask(before)
    found = (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777)
    assert found == expected
