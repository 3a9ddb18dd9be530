# SPDX-License-Identifier: Apache-2.0
"""The panels of the dashboard for several machines.

Most of them show series that docs/prometheus/sentineld-fleet.rules.yml records.
"""

from __future__ import annotations

from docs.dashboard_panels import Graph

JOB = 'training_job=~"$training_job"'
RANK = "{{training_job}} rank {{rank}}"


def _by_machine(metric: str) -> str:
    """The rate of a counter on each machine, summed over the sessions of the chosen jobs."""
    sessions = f"sum by (instance, session) (rate({metric}[$__rate_interval]))"
    job = f"instance_session:sentineld_job:info{{{JOB}}}"
    return f"sum by (instance) ({sessions} * on (instance, session) {job})"


# topk() needs instant queries: over a range of time, its answer contains every rank that was the
# topmost one at some moment.
FLEET_STATS: tuple[Graph, ...] = (
    Graph(
        "Ranks",
        "Ranks that have a session.",
        "short",
        (
            (
                "count by (training_job) (count by (training_job, rank)"
                f" (instance_session:sentineld_job:info{{{JOB}}}))",
                "{{training_job}}",
            ),
        ),
        named=True,
    ),
    Graph(
        "Missing ranks",
        "Ranks without a session: sentineld does not run there, or the training has no shim.",
        "short",
        ((f"training_job:sentineld_missing_ranks:count{{{JOB}}}", "{{training_job}}"),),
        named=True,
    ),
    Graph(
        "Slowest rank",
        "The rank with the longest steps, and its step time as a multiple of the job's median. If "
        "the ranks wait for each other in each step, all have the same step time.",
        "percentunit",
        ((f"topk(1, training_job_rank:sentineld_step_seconds:ratio{{{JOB}}})", RANK),),
        named=True,
        instant=True,
    ),
    Graph(
        "Rank furthest behind",
        "The rank for which the others wait, if the ranks wait for each other in each step: its "
        "distance behind the median position, as a share of the step's boundaries.",
        "percentunit",
        ((f"topk(1, -training_job_rank:sentineld_step_position:lead{{{JOB}}})", RANK),),
        named=True,
        instant=True,
    ),
)

FLEET_ROWS: dict[str, tuple[Graph, ...]] = {
    "Straggler": (
        Graph(
            "Step time",
            "Mean time of a step, by rank.",
            "s",
            ((f"training_job_rank:sentineld_step_seconds:mean5m{{{JOB}}}", RANK),),
        ),
        Graph(
            "Step time relative to the job",
            "Mean time of a step as a multiple of the median of the job's ranks.",
            "percentunit",
            ((f"training_job_rank:sentineld_step_seconds:ratio{{{JOB}}}", RANK),),
        ),
        Graph(
            "Lead within the step",
            "Mean position within the step, relative to the median of the job's ranks, as a share "
            "of the step's boundaries. The others wait for the rank with the lowest line.",
            "percentunit",
            ((f"training_job_rank:sentineld_step_position:lead{{{JOB}}}", RANK),),
            minimum=None,
        ),
        Graph(
            "Waits for moves",
            "Time per step for which the rank waits for moves.",
            "s",
            ((f"training_job_rank:sentineld_barrier_wait_seconds:per_step{{{JOB}}}", RANK),),
        ),
    ),
    "Moves by rank": (
        Graph(
            "Late moves",
            "Moves per step that were not complete at their deadline.",
            "short",
            ((f"training_job_rank:sentineld_late_moves:per_step{{{JOB}}}", RANK),),
        ),
        Graph(
            "Moved bytes",
            "Bytes moved per step, in both directions.",
            "bytes",
            ((f"training_job_rank:sentineld_moved_bytes:per_step{{{JOB}}}", RANK),),
        ),
    ),
    "Machines": (
        Graph(
            "Late moves",
            "Late moves per second of the jobs' sessions, by machine.",
            "short",
            ((_by_machine("sentineld_late_moves_total"), "{{instance}}"),),
        ),
        Graph(
            "Waits for moves",
            "Time for which the jobs' sessions wait for moves, by machine: seconds per second, "
            "added over the machine's ranks.",
            "short",
            ((_by_machine("sentineld_barrier_wait_seconds_total"), "{{instance}}"),),
        ),
        Graph(
            "Moved bytes",
            "Bytes of the jobs' sessions that are moved, by machine.",
            "Bps",
            ((_by_machine('sentineld_migrated_bytes_total{result="moved"}'), "{{instance}}"),),
        ),
        Graph(
            "Page faults of paged tiers",
            "Paged tiers only: accesses of the jobs' sessions that waited for a page, per second.",
            "short",
            ((_by_machine("sentineld_paging_faults_total"), "{{instance}}"),),
        ),
        Graph(
            "Managed sessions",
            "Sessions whose plan is live, on all scraped machines.",
            "short",
            (('sum by (instance) (sentineld_sessions{state="managed"})', "{{instance}}"),),
        ),
        Graph(
            "Daemons",
            "1: the daemon answers; 0: it does not.",
            "short",
            (('up{job="sentineld"}', "{{instance}}"),),
            maximum=1,
        ),
    ),
}
