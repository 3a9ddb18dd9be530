# SPDX-License-Identifier: Apache-2.0
"""The table of the attacks, including attacks without a measured speed of the training."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import attacks
from tests.hostile.figures import Figures


def figures(control: bool, steps_per_s: float | None) -> Figures:
    return Figures(
        attack="flood",
        control=control,
        duration_s=10.0,
        status_worst_s=0.5,
        status_requests=20,
        peak_bytes=100 << 20,
        log_bytes_per_min=1e3,
        more_descriptors=0,
        steps=100,
        steps_per_s=steps_per_s,
    )


def test_the_speed_is_compared_with_the_control() -> None:
    rows = attacks.summary([[figures(False, 9.9), figures(True, 10.0)]])
    assert attacks.least_speed_share(rows) == pytest.approx(0.99)
    assert "holds: the training keeps 95 % of its speed (99.0%)" in attacks.text(rows)
    rows = attacks.summary([[figures(False, 9.0), figures(True, 10.0)]])
    assert "DOES NOT HOLD: the training keeps 95 % of its speed (90.0%)" in attacks.text(rows)


@pytest.mark.parametrize("control_steps_per_s", [None, 10.0])
def test_a_speed_that_was_not_measured_is_no_success(
    control_steps_per_s: float | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def one_round(select: str, file: Path) -> list[Figures]:
        file.touch()
        return [figures(False, None), figures(True, control_steps_per_s)]

    monkeypatch.setattr(attacks, "one_round", one_round)
    monkeypatch.setattr("sys.argv", ["attacks", "-o", str(tmp_path / "attacks.json")])
    with pytest.raises(SystemExit, match="was measured during none of the attacks"):
        attacks.main()
    output = capsys.readouterr().out
    assert "DOES NOT HOLD: the training keeps 95 % of its speed (not measured)" in output
