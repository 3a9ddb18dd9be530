# SPDX-License-Identifier: Apache-2.0
"""Makes docs/grafana/sentineld.json with the Grafana Foundation SDK."""

from __future__ import annotations

import json

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
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, StackingMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableRefresh,
)

from docs.dashboard_panels import ROWS, STATS, Graph

DATASOURCE = DataSourceRef(type_val="prometheus", uid="$datasource")


def _queries(graph: Graph) -> list[Dataquery]:
    return [
        Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + index))
        for index, (expression, legend) in enumerate(graph.queries)
    ]


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
    for query in _queries(graph):
        panel = panel.with_target(query)
    return panel


def _timeseries(graph: Graph) -> Timeseries:
    panel = (
        Timeseries()
        .title(graph.title)
        .description(graph.text)
        .unit(graph.unit)
        .min(0)
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
    if graph.maximum is not None:
        panel = panel.max(graph.maximum)
    if graph.stacked:
        panel = panel.stacking(StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(30)
    for query in _queries(graph):
        panel = panel.with_target(query)
    return panel


def dashboard() -> str:
    """The dashboard as JSON."""
    board = (
        Dashboard("sentineld")
        .uid("sentineld")
        .description("Tiered memory for PyTorch training")
        .tags(["memory", "pytorch", "numa"])
        .refresh("10s")
        .time("now-30m", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(
            QueryVariable("session")
            .label("Session")
            .datasource(DATASOURCE)
            .query("label_values(sentineld_session_info, session)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    )
    for graph in STATS:
        board = board.with_panel(_stat(graph))
    for title, graphs in ROWS.items():
        board = board.with_row(Row(title))
        for graph in graphs:
            board = board.with_panel(_timeseries(graph))
    return json.dumps(board.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"
