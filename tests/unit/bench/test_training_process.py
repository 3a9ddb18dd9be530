# SPDX-License-Identifier: Apache-2.0
"""How the end of a benchmark's training process is reported."""

from __future__ import annotations

import pytest

from tests.bench.training_process import Training, TrainingEndedError


@pytest.mark.parametrize(
    ("command", "how"), [("exit 3", "exit status 3"), ("kill -9 $$", "signal 9")]
)
def test_a_training_that_ends_early_is_reported(command: str, how: str) -> None:
    training = Training("mobilenet", prefix=("sh", "-c", command))
    with pytest.raises(TrainingEndedError, match=how):
        training.steps(1)
    training.close()
