# SPDX-License-Identifier: Apache-2.0
"""The panels of the dashboard for one machine: title, description, unit and queries of each."""

from __future__ import annotations

from dataclasses import dataclass

SESSION = 'session=~"$session"'


@dataclass(frozen=True)
class Graph:
    """One panel."""

    title: str
    text: str  # the description
    unit: str
    queries: tuple[tuple[str, str], ...]  # (PromQL, legend)
    stacked: bool = False
    minimum: float | None = 0
    maximum: float | None = None
    named: bool = False  # panel of a single value: show the legend beside the value
    instant: bool = False  # panel of a single value: query only the current value, not its history


def _rate(metric: str, matchers: str = SESSION) -> str:
    return f"rate({metric}{{{matchers}}}[$__rate_interval])"


ROWS: dict[str, tuple[Graph, ...]] = {
    "Fast memory": (
        Graph(
            "Charged and budget",
            "Fast memory charged to each session, and its budget.",
            "bytes",
            (
                (f"sentineld_charged_bytes{{{SESSION}}}", "{{session}} charged"),
                (f"sentineld_budget_bytes{{{SESSION}}}", "{{session}} budget"),
            ),
        ),
        Graph(
            "Shared budget",
            "The shared budget, and each session's share of it.",
            "bytes",
            (
                ("sentineld_shared_budget_bytes", "shared budget"),
                (f"sentineld_share_bytes{{{SESSION}}}", "{{session}}"),
            ),
        ),
        Graph(
            "Time relative to an equal share",
            "Predicted step time (policy temperature: run time), divided by that with an equal "
            "share of the shared budget.",
            "percentunit",
            ((f"sentineld_share_slowdown_ratio{{{SESSION}}}", "{{session}}"),),
        ),
        Graph(
            "Tensor pages by tier",
            "Resident tensor pages on each tier; tier 0 is the fastest.",
            "bytes",
            (
                (
                    f"sum by (session, tier) (sentineld_resident_bytes{{{SESSION}}})",
                    "{{session}} tier {{tier}}",
                ),
            ),
            stacked=True,
        ),
        Graph(
            "Fast share",
            "Share of sampled page accesses served by the fast tier, in the last metered step.",
            "percentunit",
            ((f"sentineld_fast_share_ratio{{{SESSION}}}", "{{session}}"),),
            maximum=1,
        ),
        Graph(
            "Budget in use",
            "Charged memory as a share of the budget.",
            "percentunit",
            (
                (
                    f"sentineld_charged_bytes{{{SESSION}}}"
                    f" / (sentineld_budget_bytes{{{SESSION}}} > 0)",
                    "{{session}}",
                ),
            ),
        ),
    ),
    "Migration": (
        Graph(
            "Moved",
            "Bytes moved between the tiers.",
            "Bps",
            (
                (
                    "sum by (session, direction) ("
                    + _rate("sentineld_migrated_bytes_total", SESSION + ', result="moved"')
                    + ")",
                    "{{session}} {{direction}}",
                ),
            ),
        ),
        Graph(
            "Delays of emulated tiers",
            "Emulated tiers only: delay that the timing model computes for slow pages (owed), and "
            "delay injected into the process (paid), as shares of the elapsed time.",
            "percentunit",
            (
                (
                    "sum by (session, kind) ("
                    + _rate("sentineld_emulated_delay_seconds_total")
                    + ")",
                    "{{session}} {{kind}}",
                ),
            ),
        ),
        Graph(
            "File of paged tiers",
            "Paged tiers only: bytes read from the processes' files and written to them.",
            "Bps",
            (
                (
                    "sum by (session, direction) (" + _rate("sentineld_paging_bytes_total") + ")",
                    "{{session}} {{direction}}",
                ),
            ),
        ),
        Graph(
            "Page faults of paged tiers",
            "Paged tiers only: accesses that waited for a page, and page frames taken beyond the "
            "budget, per second.",
            "short",
            (
                (_rate("sentineld_paging_faults_total"), "{{session}} faults"),
                (_rate("sentineld_paging_overruns_total"), "{{session}} frames beyond the budget"),
            ),
        ),
        Graph(
            "Swap of policy temperature",
            "Bytes that the daemon pages out, that processes swap in by accesses, and that the "
            "daemon reads ahead.",
            "Bps",
            (
                (
                    "sum by (session, direction) (" + _rate("sentineld_swap_bytes_total") + ")",
                    "{{session}} {{direction}}",
                ),
            ),
        ),
        Graph(
            "CPU time of policy temperature",
            "CPU time of scans, and of page-outs and prefetches, as shares of one core.",
            "percentunit",
            (
                (
                    "sum by (session, kind) ("
                    + _rate("sentineld_temperature_cpu_seconds_total")
                    + ")",
                    "{{session}} {{kind}}",
                ),
            ),
        ),
        Graph(
            "Not moved",
            "Bytes of moves that were skipped or failed, by reason.",
            "Bps",
            (
                (
                    "sum by (session, result, reason) ("
                    + _rate("sentineld_migrated_bytes_total", SESSION + ', result!="moved"')
                    + ")",
                    "{{session}} {{result}}: {{reason}}",
                ),
            ),
        ),
        Graph(
            "Late moves",
            "Moves not finished at their deadline, per second.",
            "short",
            ((_rate("sentineld_late_moves_total"), "{{session}}"),),
        ),
        Graph(
            "Migrations by the kernel",
            "Pages that passed through the kernel's migrate_pages(), by reason.",
            "short",
            (
                (
                    "sum by (reason, result)"
                    " (rate(sentineld_kernel_migrated_pages_total[$__rate_interval]))",
                    "{{reason}} {{result}}",
                ),
            ),
        ),
        Graph(
            "Moved by others",
            "Pages of each session that the kernel or other programs moved, reclaimed or "
            "collapsed into huge pages; sentinelctl status names the main cause.",
            "short",
            (
                (
                    "sum by (session, reason) ("
                    + _rate("sentineld_disturbed_pages_total", SESSION + ', result="moved"')
                    + ")",
                    "{{session}} {{reason}}",
                ),
            ),
        ),
    ),
    "Training": (
        Graph(
            "Steps",
            "Training steps a second.",
            "short",
            ((_rate("sentineld_steps_total"), "{{session}}"),),
        ),
        Graph(
            "Waiting for moves",
            "Share of the elapsed time for which the training waited for moves.",
            "percentunit",
            ((_rate("sentineld_barrier_wait_seconds_total"), "{{session}}"),),
        ),
        Graph(
            "Divergence and corrections",
            "Diverged steps, barriers that timed out and corrected plans, per second.",
            "short",
            (
                (_rate("sentineld_diverged_steps_total"), "{{session}} diverged"),
                (_rate("sentineld_barrier_timeouts_total"), "{{session}} timed out"),
                (_rate("sentineld_plan_corrections_total"), "{{session}} corrected, {{cause}}"),
            ),
        ),
        Graph(
            "Peak and unmanaged",
            "Peak of the profiled step, and tensor bytes that the daemon cannot move.",
            "bytes",
            (
                (f"sentineld_peak_bytes{{{SESSION}}}", "{{session}} peak"),
                (f"sentineld_unmanaged_bytes{{{SESSION}}}", "{{session}} unmanaged"),
            ),
        ),
        Graph(
            "Energy of a step",
            "Mean energy of a step under the live plan: of the whole machine by RAPL, or modelled.",
            "joule",
            ((f"sentineld_step_energy_joules{{{SESSION}}}", "{{session}} {{source}}"),),
        ),
        Graph(
            "Power",
            "Power of the machine's processor packages and their memory, by RAPL.",
            "watt",
            (
                (
                    "rate(sentineld_machine_energy_joules_total[$__rate_interval])",
                    "{{zone}}",
                ),
            ),
            stacked=True,
        ),
    ),
    "Observation": (
        Graph(
            "Page faults",
            "Page faults of attached or recorded processes, by kind.",
            "short",
            (
                (
                    f"sum by (kind) ({_rate('sentineld_page_faults_total')})",
                    "{{kind}}",
                ),
            ),
        ),
        Graph(
            "Accesses to armed pages",
            "Accesses per second, as counted by the module and by its tracepoint. The tracepoint "
            "has no events for huge pages. Without huge pages, the two lines should coincide.",
            "short",
            ((_rate("sentineld_page_accesses_total"), "{{session}} {{source}}"),),
        ),
        Graph(
            "Samples",
            "Page samples taken, by backend.",
            "short",
            ((_rate("sentineld_samples_total"), "{{session}} {{backend}}"),),
        ),
        Graph(
            "Lost",
            "Records and events lost because a queue was full.",
            "short",
            (
                (_rate("sentineld_records_lost_total"), "{{session}} {{queue}}"),
                ("rate(sentineld_events_dropped_total[$__rate_interval])", "{{queue}}"),
            ),
        ),
    ),
    "Daemon": (
        Graph(
            "CPU",
            "CPU time of the daemon.",
            "percentunit",
            (
                (
                    'rate(process_cpu_seconds_total{job="sentineld"}[$__rate_interval])',
                    "{{instance}}",
                ),
            ),
        ),
        Graph(
            "Memory",
            "Resident memory of the daemon.",
            "bytes",
            (('process_resident_memory_bytes{job="sentineld"}', "{{instance}}"),),
        ),
        Graph(
            "Scrape",
            "Time to take one snapshot.",
            "s",
            (("sentineld_scrape_duration_seconds", "{{instance}}"),),
        ),
        Graph(
            "Heartbeat age",
            "Time from the last refresh of the daemon's heartbeats to the scrape.",
            "s",
            (
                (
                    "timestamp(sentineld_heartbeat_timestamp_seconds)"
                    " - sentineld_heartbeat_timestamp_seconds",
                    "{{instance}}",
                ),
            ),
        ),
    ),
}

STATS: tuple[Graph, ...] = (
    Graph(
        "Managed",
        "Sessions whose plan is live.",
        "short",
        (('sum(sentineld_sessions{state="managed"})', "managed"),),
    ),
    Graph(
        "Sessions",
        "All sessions.",
        "short",
        (("sum(sentineld_sessions)", "sessions"),),
    ),
    Graph(
        "Features",
        "1: works on this machine; 0: see sentinelctl doctor.",
        "short",
        (("sentineld_feature_available", "{{feature}}"),),
    ),
    Graph(
        "Tier sizes",
        "Memory of each tier.",
        "bytes",
        (("sentineld_tier_capacity_bytes", "tier {{tier}}"),),
    ),
)
