# SPDX-License-Identifier: Apache-2.0
"""Loading the configuration; its errors name the mistake and the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.config import (
    RANGES,
    TABLES,
    Config,
    TierOverrides,
    changed_keys,
    load,
    load_with_origins,
    with_reloadable,
)
from sentineld.model.attach_rule import AttachRule


def test_a_folder_that_may_not_be_searched_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", denied)
    with pytest.raises(SentinelError, match="Permission denied") as caught:
        load(tmp_path / "config.toml")
    assert caught.value.code == "bad-config"


def test_later_files_override_earlier_ones(tmp_path: Path) -> None:
    main = tmp_path / "config.toml"
    main.write_text('fast = "30%"\npolicy = "first-touch"\n[tiers]\nfast = [0]\n')
    (tmp_path / "config.d").mkdir()
    (tmp_path / "config.d" / "10-a.toml").write_text('fast = "10%"\n')
    (tmp_path / "config.d" / "60-b.toml").write_text('fast = "48MiB"\n[tiers]\nslow = [2]\n')
    config = load(main)
    assert (config.fast, config.policy) == ("48MiB", "first-touch")
    assert (config.tiers.fast, config.tiers.slow) == ((0,), (2,))
    last = tmp_path / "config.d" / "60-b.toml"
    assert load_with_origins(main) == (
        config,
        {"fast": last, "policy": main, "tiers.fast": main, "tiers.slow": last},
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('polcy = "sentinel"', "did you mean policy?"),
        ("[tiers]\nfats = [0]", "did you mean tiers.fast?"),
        ("metrics_port = true", "metrics_port must be an integer, not True"),
        ("[tiers]\nfast = [-1]", "tiers.fast must be a list of node ids"),
        ("log_records = 5000", "power of two"),
        ('ebpf = "maybe"', "auto, off or required"),
        ('huge_pages = "maybe"', "auto, on or off"),
        ('[tiers]\noverlap = "all"', "use none, compute or tiers"),
        ('fast = "120%"', "at most 100%"),
        ('shared_fast = "120%"', "shared_fast: '120%' is not a share"),
        ("fast = ", "config.toml"),
        ("tiers = 3", "write [tiers]"),
        ("barrier_timeout_ms = -1", "barrier_timeout_ms = -1"),
        ("plan_processes = 0", "plan_processes = 0"),
        ("plan_memory_bytes = 1", "plan_memory_bytes = 1"),
        ("plan_nice = 20", "use 0 to 19"),
        ("plan_timeout_s = 0", "use 1 to 86400"),
        ("scan_cpu_share = 0", "use 0.001 to 1"),
        ("scan_cpu_share = 1.5", "scan_cpu_share = 1.5"),
        ("metrics_port = 70000", "use 0 to 65535"),
        ("[tiers]\npaged_bytes = -1", "tiers.paged_bytes = -1"),
        ("[tiers]\nemulated_threads = 0", "tiers.emulated_threads = 0"),
        ("[tiers]\nslow_read_bytes_per_s = -1", "tiers.slow_read_bytes_per_s = -1.0"),
        ("[tiers]\nslow_read_bytes_per_s = inf", "use a finite number"),
        ("[tiers]\nslow_read_bytes_per_s = nan", "use a finite number"),
    ],
)
def test_errors_name_the_mistake(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(SentinelError) as caught:
        load(file)
    assert caught.value.code == "bad-config"
    assert named in str(caught.value)
    assert str(file) in str(caught.value)


def test_each_integer_has_a_range_that_contains_its_default() -> None:
    defaults = {**vars(Config()), **{f"tiers.{k}": v for k, v in vars(TierOverrides()).items()}}
    integers = {name for name, value in defaults.items() if type(value) is int}
    assert integers - {"log_records"} == RANGES.keys()
    assert all(least <= defaults[name] <= most for name, (least, most) in RANGES.items())


def test_the_file_that_sets_an_invalid_value_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("plan_processes = 3\n")
    (tmp_path / "config.d").mkdir()
    (tmp_path / "config.d" / "10-a.toml").write_text("plan_processes = 0\n")
    (tmp_path / "config.d" / "20-b.toml").write_text('fast = "10%"\n')
    with pytest.raises(SentinelError, match=r"10-a\.toml: plan_processes = 0"):
        load(tmp_path / "config.toml")


def test_an_explicitly_given_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SentinelError, match="does not exist"):
        load(tmp_path / "none.toml")


def test_the_rules_of_all_files_form_one_list(tmp_path: Path) -> None:
    main = tmp_path / "config.toml"
    main.write_text(
        '[[attach]]\nuser = 1000\nfast = "30%"\n[[attach]]\nuser = "root"\nmanage = false\n'
    )
    (tmp_path / "config.d").mkdir()
    last = tmp_path / "config.d" / "10-a.toml"
    last.write_text('[[attach]]\nunit = "ml.slice"\ncommand = "*train*"\npolicy = "static"\n')
    config, origins = load_with_origins(main)
    assert config.attach == (
        AttachRule(user="1000", fast="30%"),
        AttachRule(user="root", manage=False),
        AttachRule(unit="ml.slice", command="*train*", policy="static"),
    )
    assert [rule.origin for rule in config.attach] == [
        f"{main}: attach rule 1",
        f"{main}: attach rule 2",
        f"{last}: attach rule 1",
    ]
    assert origins == {}


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ('usr = "a"', "unknown key usr (did you mean user?)"),
        ('origin = "a"', "unknown key origin"),
        ("user = true", "user must be a string, not True"),
        ("user = -1", "user = -1"),
        ('user = ""', "user is empty"),
        ("cgroup = 1", "cgroup must be a string"),
        ('cgroup = "ml"', "give a path that begins with /"),
        ('cgroup = "/"', "leave out the key to match processes in every cgroup"),
        ('unit = "/system.slice/a.service"', "give a unit, or the key cgroup"),
        ('manage = "no"', "manage must be true or false"),
        ('manage = false\nfast = "10%"', "fast has no effect, because manage = false"),
        ('manage = false\npolicy = "auto"', "policy has no effect, because manage = false"),
        ('fast = "120%"', "fast: "),
        ("policy = 3", "policy must be a string, not 3"),
    ],
)
def test_errors_of_a_rule_name_file_number_and_key(tmp_path: Path, rule: str, named: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[[attach]]\nuser = "a"\n[[attach]]\n{rule}\n')
    with pytest.raises(SentinelError) as caught:
        load(file)
    assert caught.value.code == "bad-config"
    assert f"{file}: attach rule 2: " in str(caught.value)
    assert named in str(caught.value)


@pytest.mark.parametrize("text", ["attach = 3", "attach = [1]", "[attach]\nuser = 1"])
def test_rules_are_a_list_of_tables(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(SentinelError, match="attach is not a list of tables"):
        load(file)


def test_changed_keys_are_named_in_the_order_of_the_fields() -> None:
    before = Config()
    after = Config(
        fast="30%", attach=(AttachRule(),), tiers=TierOverrides(slow=(1,), emulated="cxl")
    )
    assert changed_keys(before, after) == ["fast", "attach", "tiers.slow", "tiers.emulated"]
    assert changed_keys(before, before) == []
    reloaded = with_reloadable(before, after)
    assert changed_keys(before, reloaded) == ["fast", "attach"]


VALUES = {
    bool: "true",
    int: "7",
    float: "0.5",
    str: '"seven"',
    tuple: "[0]",
    dict: "{seven = 7}",
    object: "2026-11-29",
}
"""A TOML value of each type; `object` is for a date, which no setting needs."""
KEYS = {
    **{("", name): value for name, value in vars(Config()).items() if name not in TABLES},
    **{("[tiers]", name): value for name, value in vars(TierOverrides()).items()},
    **{
        ("[[attach]]", name): value
        for name, value in vars(AttachRule()).items()
        if name != "origin"
    },
}
"""Each setting's table and name, and its default."""


@pytest.mark.parametrize(("table", "name"), KEYS)
def test_every_setting_refuses_values_of_other_types(tmp_path: Path, table: str, name: str) -> None:
    kind = type(KEYS[table, name])
    also = {float: {int}}.get(kind, set())
    if (table, name) == ("[[attach]]", "user"):
        also = {int}
    file = tmp_path / "config.toml"
    for other, value in VALUES.items():
        if other is kind or other in also:
            continue
        file.write_text(f"{table}\n{name} = {value}\n")
        with pytest.raises(SentinelError, match=rf"{name}.* must be ") as caught:
            load(file)
        assert caught.value.code == "bad-config"


REQUIRED = [
    name for name, default in vars(Config()).items() if isinstance(default, str) and default
]


@pytest.mark.parametrize("name", REQUIRED)
def test_a_setting_with_a_default_is_not_empty(tmp_path: Path, name: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'{name} = ""\n')
    with pytest.raises(SentinelError, match=f"{name} is empty") as caught:
        load(file)
    assert caught.value.code == "bad-config"
