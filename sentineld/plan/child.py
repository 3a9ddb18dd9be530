# SPDX-License-Identifier: Apache-2.0
"""Planning in a child process, so that the daemon stays small and answers at once.

`python -m sentineld.plan.child` reads a pickled request from its standard input
and writes a pickled answer; both ends are this program's own.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import sentineld
from sentineld.errors import SentinelError
from sentineld.plan.check import verify
from sentineld.plan.model import Plan
from sentineld.plan.registry import policy
from sentineld.profile.model import Profile
from sentineld.tiers import Tiers


def plan_in_child(
    name: str, profile: Profile, tiers: Tiers, budget_bytes: int, timeout_s: float
) -> Plan:
    """The policy's plan, verified. Raises SentinelError."""
    package_parent = str(Path(sentineld.__file__).parent.parent)
    paths = [package_parent, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sentineld.plan.child"],
            input=pickle.dumps((name, profile, tiers, budget_bytes)),
            stdout=subprocess.PIPE,
            timeout=timeout_s,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
    except subprocess.TimeoutExpired:
        raise SentinelError(
            "failed", f"policy {name} planned for over {timeout_s:g} s", "raise plan_timeout_s"
        ) from None
    except (OSError, subprocess.CalledProcessError) as error:
        raise SentinelError(
            "failed", f"policy {name} did not plan: {error}", "see journalctl -u sentineld"
        ) from None
    answer = pickle.loads(done.stdout)
    if isinstance(answer, Plan):
        return answer
    raise SentinelError(*answer)


def main() -> None:
    """The child."""
    name, profile, tiers, budget_bytes = pickle.load(sys.stdin.buffer)
    answer: Plan | tuple[str, str, str]
    try:
        chosen = policy(name)
        plan = chosen.plan(profile, tiers, budget_bytes)
        verify(plan, profile, budget_bytes if chosen.charges_budget else None)
        answer = plan
    except SentinelError as error:
        answer = (error.code, error.message, error.hint)
    sys.stdout.buffer.write(pickle.dumps(answer))


if __name__ == "__main__":
    main()
