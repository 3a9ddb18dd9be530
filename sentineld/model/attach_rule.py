# SPDX-License-Identifier: Apache-2.0
"""A rule of the configuration that says which processes to attach when their shims connect."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class AttachRule:
    """One table [[attach]] of the configuration. The rule matches a process if all its conditions
    match; a rule without conditions matches every process. observe/matching.py evaluates rules."""

    user: str = ""  # condition: name or number of the process's user; "": every user
    cgroup: str = ""  # condition: glob of a cgroup's path; "": every cgroup
    unit: str = ""  # condition: glob of the name of a systemd unit; "": in any unit or none
    command: str = ""  # condition: glob of the command line; "": every command line
    manage: bool = True  # False: matching processes are not attached
    policy: str = ""  # "": the policy of the configuration
    fast: str = ""  # "": a share of the shared budget if there is one, else `fast` of the config
    origin: str = field(default="", compare=False)  # file and number of the rule, for messages
