# SPDX-License-Identifier: Apache-2.0
"""All checks, in the order in which problems should be fixed."""

from __future__ import annotations

from collections.abc import Callable

from sentineld.doctor import backends, energy, kernel, limits, memory, paging, service, tracing
from sentineld.doctor.findings import Finding, Status, System

CHECKS: tuple[Callable[[System], Finding], ...] = (
    kernel.kernel,
    memory.tiers,
    paging.paging,
    kernel.module,
    kernel.device,
    kernel.ftrace,
    backends.backend,
    tracing.headers,
    tracing.bcc,
    tracing.btf,
    tracing.capabilities,
    tracing.perf_paranoid,
    tracing.pyroute2,
    memory.numa_balancing,
    memory.demotion,
    memory.huge_pages,
    memory.max_map_count,
    memory.swap,
    memory.free_memory,
    limits.cpuset,
    limits.memory_limit,
    limits.mappings,
    energy.rapl,
    service.shim_library,
    service.daemon,
)


def examine(system: System) -> list[Finding]:
    """Run all checks."""
    return [check(system) for check in CHECKS]


def first_failure(findings: list[Finding]) -> Finding | None:
    """The first failing check, which determines the exit status; None if no check fails."""
    return next((found for found in findings if found.status is Status.FAIL), None)
