# SPDX-License-Identifier: Apache-2.0
"""The demo starts its workload, whose steps are timed by the given clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.demo.trainer import Trainer, TrainerError

pytest.importorskip("torch")


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    device = tmp_path / "device"
    device.write_bytes(bytes(4096))
    started = Trainer("toy", shim=False, steps=3, clock=device)
    yield started
    started.kill()


def test_steps_are_found_by_number_and_have_the_devices_time(trainer: Trainer) -> None:
    trainer.wait_imported()
    trainer.go()
    first = trainer.wait_step()
    assert trainer.wait_for(2, timeout_s=240).number == 2
    assert first.number in (0, 1)
    assert [line.seconds for line in trainer.steps] == [0.0] * 3
    trainer.join(timeout_s=60)
    with pytest.raises(TrainerError, match="did not reach step 3"):
        trainer.wait_for(3, timeout_s=1)
