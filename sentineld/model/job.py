# SPDX-License-Identifier: Apache-2.0
"""The job (the distributed training) to which a process belongs, and the process's rank in it.

The shim reads both from the environment variables of torchrun, similar launchers and Slurm, and
sends them to the daemon in its first message, the hello, under the key "job". The key is
optional, so a daemon or shim that does not support it still works, and no new protocol version is
needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sentineld.base.text import text_of

JOB_VARIABLE = "SENTINELD_JOB"
"""Names the job; all ranks must have the same value. It has precedence over all other variables."""
NAME_CHARACTERS_MAX = 128
RANKS_MAX = 1 << 24
NO_RUN_ID = "none"
"""torchrun's run ID if it was started without --rdzv-id."""


@dataclass(frozen=True)
class Job:
    """The job to which a process belongs, and the process's rank in it. The process chooses all
    values itself, so they are untrusted."""

    name: str
    """The same for all ranks of the job."""
    rank: int | None = None
    world_size: int | None = None
    """Number of ranks of the job."""
    local_rank: int | None = None
    """Number of the rank among the ranks on the same machine."""

    @property
    def title(self) -> str:
        """The job and the rank as text."""
        if self.rank is None:
            return f"job {self.name}"
        of = "" if self.world_size is None else f" of {self.world_size}"
        return f"rank {self.rank}{of} of job {self.name}"

    def message(self) -> dict[str, Any]:
        """The value of the hello's key "job", from which of_message() makes an equal Job."""
        return asdict(self)


def of_environment(environment: Mapping[str, str]) -> Job | None:
    """The job of a process with these environment variables; None if it belongs to no job.

    Sources: torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and
    TORCHELASTIC_RUN_ID. srun sets SLURM_PROCID, SLURM_LOCALID and SLURM_STEP_NUM_TASKS. Slurm sets
    SLURM_JOB_ID for every process of a job. sbatch sets SLURM_PROCID for the script, too, but not
    SLURM_STEP_NUM_TASKS; so without the latter, SLURM_PROCID is not a rank.
    """

    def number(name: str, slurm: str) -> int | None:
        value = environment.get(name)
        if value is None and "SLURM_STEP_NUM_TASKS" in environment:
            value = environment.get(slurm)
        return _rank_number(int(value)) if value and re.fullmatch(r"[0-9]{1,9}", value) else None

    rank = number("RANK", "SLURM_PROCID")
    name = environment.get(JOB_VARIABLE) or _launchers_name(environment, rank)
    if not name:
        return None
    return Job(
        name=text_of(name, NAME_CHARACTERS_MAX),
        rank=rank,
        world_size=number("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"),
        local_rank=number("LOCAL_RANK", "SLURM_LOCALID"),
    )


def _launchers_name(environment: Mapping[str, str], rank: int | None) -> str:
    """Slurm's job ID and torchrun's run ID, joined by a slash, as far as they exist. If neither
    exists, the address at which the ranks meet."""
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    ids = [environment.get("SLURM_JOB_ID", ""), "" if run == NO_RUN_ID else run]
    # dict.fromkeys() removes duplicates: scripts often pass Slurm's job ID to torchrun as run ID.
    if name := "/".join(dict.fromkeys(one for one in ids if one)):
        return name
    address = environment.get("MASTER_ADDR")
    if rank is None or not address:
        return ""
    return f"{address}:{environment.get('MASTER_PORT', '')}"


def of_message(value: object) -> Job | None:
    """The job in a hello's key "job"; None if the value is missing or is not a job. Numbers that
    are out of range become None."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    rank, world_size, local_rank = (
        _rank_number(value.get(key)) for key in ("rank", "world_size", "local_rank")
    )
    return Job(text_of(value["name"], NAME_CHARACTERS_MAX), rank, world_size, local_rank)


def _rank_number(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= RANKS_MAX else None
