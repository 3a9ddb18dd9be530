# SPDX-License-Identifier: Apache-2.0
"""The planning process: `python -P -m sentineld.planner.child DAEMON_PID MEMORY_BYTES NICE`.

The process reads one pickled request (requests.py) from its standard input. It writes the pickled
answer, or a pickled SentinelError, to its standard output. The daemon starts the process and is the
only source of its input, so unpickling is safe.
"""

from __future__ import annotations

import os
import pickle
import resource
import sys

from sentineld.base.errors import SentinelError
from sentineld.base.parent import die_with
from sentineld.base.units import format_bytes
from sentineld.planner.requests import Request

_OOM_SCORE_MAX = 1000


def main() -> None:
    """Answer the request on standard input."""
    daemon_pid, memory_bytes, nice = map(int, sys.argv[1:])
    # Only the daemon's thread that started this process reads the answer, so this process is
    # useless once that thread has ended.
    if not die_with(daemon_pid):
        sys.exit("the daemon ended before the planning process began")
    _limit(memory_bytes, nice)
    answer: object
    try:
        request: Request[object] = pickle.load(sys.stdin.buffer)
    except EOFError:
        return  # the daemon has ended
    try:
        answer = request.answer()
    except SentinelError as error:
        answer = error
    except MemoryError:
        answer = SentinelError(
            "failed",
            f"planning needs more than {format_bytes(memory_bytes)} of memory",
            "raise plan_memory_bytes, or use another policy",
        )
    sys.stdout.buffer.write(pickle.dumps(answer))


def _limit(memory_bytes: int, nice: int) -> None:
    os.nice(nice)
    # Do not limit RLIMIT_AS: it would also count address space that is only reserved, such as the
    # address space of BLAS threads.
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # With this score, the kernel kills this process, and not the daemon, if the systemd unit's
    # MemoryMax is reached.
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(_OOM_SCORE_MAX))


if __name__ == "__main__":
    main()
