# SPDX-License-Identifier: Apache-2.0
"""The job of a process: from environment variables, and from a hello."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sentineld.model.job import NAME_CHARACTERS_MAX, RANKS_MAX, Job, of_environment, of_message

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "bert-7",
}
SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
}


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({}, None),
        (TORCHRUN, Job("bert-7", 5, 16, 1)),
        # Without --rdzv-id, the ranks have only the master's address in common.
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, Job("n1:29500", 5, 16, 1)),
        (SRUN, Job("4711", 3, 4, 0)),
        # srun starts one torchrun on each machine, so srun's ranks number the machines.
        ({**SRUN, **TORCHRUN}, Job("4711/bert-7", 5, 16, 1)),
        ({**SRUN, **TORCHRUN, "TORCHELASTIC_RUN_ID": "4711"}, Job("4711", 5, 16, 1)),
        # In a batch script, Slurm's rank is the rank of the script, not of a training process.
        ({"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0"}, Job("4711")),
        ({**TORCHRUN, "SENTINELD_JOB": "mine"}, Job("mine", 5, 16, 1)),
        ({"MASTER_ADDR": "n1"}, None),
        ({"RANK": "0"}, None),
    ],
)
def test_the_launchers_variables_name_job_and_rank(
    environment: dict[str, str], job: Job | None
) -> None:
    assert of_environment(environment) == job
    sent = json.loads(json.dumps(job.message() if job else None))
    assert of_message(sent) == job


@pytest.mark.parametrize("number", ["", "-1", "one", "²", "1" * 30])
def test_a_variable_that_is_no_number_is_left_out(number: str) -> None:
    assert of_environment({**TORCHRUN, "RANK": number, "LOCAL_RANK": number}) == Job(
        "bert-7", None, 16, None
    )


@pytest.mark.parametrize("value", [None, 7, [], "job", {}, {"name": ""}, {"name": ["x"]}])
def test_a_value_that_is_no_job_is_ignored(value: Any) -> None:
    assert of_message(value) is None


def test_invalid_parts_of_a_job_are_left_out() -> None:
    name = "two\nlines" + "x" * NAME_CHARACTERS_MAX
    job = of_message({"name": name, "rank": True, "world_size": RANKS_MAX + 1, "local_rank": -1})
    assert job == Job(("two?lines" + "x" * NAME_CHARACTERS_MAX)[:NAME_CHARACTERS_MAX])
