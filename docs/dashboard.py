# SPDX-License-Identifier: Apache-2.0
"""Makes the dashboards in docs/grafana with the Grafana Foundation SDK."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from grafana_foundation_sdk.builders.common import (
    ReduceDataOptions,
    StackingConfig,
    VizLegendOptions,
)
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.timeseries import Panel as Timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableRefresh,
)

from docs.dashboard_panels import ROWS, STATS, Graph
from docs.fleet_panels import FLEET_ROWS, FLEET_STATS

DATASOURCE = DataSourceRef(type_val="prometheus", uid="$datasource")


def _queries(graph: Graph) -> list[Dataquery]:
    queries = [
        Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + index))
        for index, (expression, legend) in enumerate(graph.queries)
    ]
    return [query.instant() for query in queries] if graph.instant else queries


def _stat(graph: Graph) -> Stat:
    panel = (
        Stat()
        .title(graph.title)
        .description(graph.text)
        .unit(graph.unit)
        .datasource(DATASOURCE)
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        .height(4)
        .span(6)
    )
    if graph.named:
        panel = panel.text_mode(BigValueTextMode.VALUE_AND_NAME)
    for query in _queries(graph):
        panel = panel.with_target(query)
    return panel


def _timeseries(graph: Graph) -> Timeseries:
    panel = (
        Timeseries()
        .title(graph.title)
        .description(graph.text)
        .unit(graph.unit)
        .datasource(DATASOURCE)
        .legend(
            VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .height(8)
        .span(6)
    )
    if graph.minimum is not None:
        panel = panel.min(graph.minimum)
    if graph.maximum is not None:
        panel = panel.max(graph.maximum)
    if graph.stacked:
        panel = panel.stacking(StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(30)
    for query in _queries(graph):
        panel = panel.with_target(query)
    return panel


def _board(uid: str, title: str, text: str, choice: QueryVariable) -> Dashboard:
    """A dashboard without panels.

    choice: variable for the sessions or jobs to show, in addition to the data source's variable.
    """
    return (
        Dashboard(title)
        .uid(uid)
        .description(text)
        .tags(["memory", "pytorch", "numa"])
        .refresh("10s")
        .time("now-30m", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(
            choice.datasource(DATASOURCE)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    )


def _json(board: Dashboard, stats: Iterable[Graph], rows: Mapping[str, Iterable[Graph]]) -> str:
    """The dashboard with these panels as JSON."""
    for graph in stats:
        board = board.with_panel(_stat(graph))
    for title, graphs in rows.items():
        board = board.with_row(Row(title))
        for graph in graphs:
            board = board.with_panel(_timeseries(graph))
    return json.dumps(board.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def dashboard() -> str:
    """The dashboard for one machine as JSON."""
    sessions = QueryVariable("session").label("Session")
    sessions = sessions.query("label_values(sentineld_session_info, session)")
    board = _board("sentineld", "sentineld", "Tiered memory for PyTorch training", sessions)
    return _json(board, STATS, ROWS)


def fleet_dashboard() -> str:
    """The dashboard for several machines as JSON."""
    jobs = QueryVariable("training_job").label("Job")
    jobs = jobs.query("label_values(instance_session:sentineld_job:info, training_job)")
    text = "Distributed trainings on tiered memory: ranks and machines"
    return _json(_board("sentineld-fleet", "sentineld fleet", text, jobs), FLEET_STATS, FLEET_ROWS)
