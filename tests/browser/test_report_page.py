# SPDX-License-Identifier: Apache-2.0
"""Report pages in Chromium. No test may leave a message in the browser's console (conftest.py)."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sentineld.base.units import format_bytes
from sentineld.model.records import TensorName
from sentineld.planner.requests import PlanRequest
from sentineld.profile.trace import Trace, profile_of
from sentineld.report import page_data as limits
from sentineld.report.page_data import Report
from sentineld.report.page_sources import plan_report, trace_report
from tests.browser.opened import View
from tests.unit.report.pages import unpacked
from tests.unit.traces import recorded, two_tiers

TRACE = recorded()
PROFILE = profile_of(TRACE)
DRAWING_S = 2.0
"""Limit on the CPU time for loading and drawing any page."""
HOSTILE = "</script><img src=x onerror=alert(1)><!-- \"'&\u2028 " + "y" * 2048


def planned(trace: Trace = TRACE) -> Report:
    profile = profile_of(trace)
    plan = PlanRequest("sentinel", profile, two_tiers(), profile.peak_bytes // 3).answer()
    return trace_report(trace, profile, "process 4242, it.npz", plan)


def sizes(texts: list[str]) -> list[float]:
    units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    return [float(number) * units[unit] for number, unit in (text.split() for text in texts)]


def test_the_table_is_sorted_by_the_clicked_column(view: View) -> None:
    page = view(planned())
    shown = sizes(page.column("Size"))
    assert shown == sorted(shown, reverse=True)
    page.press("Size")
    shown = sizes(page.column("Size"))
    assert shown == sorted(shown)
    assert page.text("#table th[aria-sort=ascending]") == "Size"
    page.press("Name")
    names = page.column("Name")
    assert names == sorted(names)
    page.press("Name")
    assert page.column("Name")[0] == max(page.data["tensors"]["name"])


def test_the_search_shows_the_tensors_with_all_words(view: View) -> None:
    page = view(planned())
    page.search("WEIGHT0 parameter")
    found = [name for name in page.data["tensors"]["name"] if "weight0" in name]
    assert sorted(page.column("Name")) == sorted(found)
    every = len(page.data["tensors"]["name"])
    assert page.text("#count").startswith(f"{len(found)} of {every} tensors")
    page.search("no such tensor")
    assert page.column("Name") == []
    page.search("")
    assert page.text("#count").startswith(f"{every} of {every} tensors")


def test_scrolling_shows_the_other_rows(view: View) -> None:
    page = view(planned())
    page.press("Name")
    last = max(page.data["tensors"]["name"])
    assert last not in page.column("Name")
    page.run("document.getElementById('table').scrollTop = 1e9")
    page.wait(lambda: page.column("Name")[-1:] == [last])


@pytest.mark.parametrize("name", ["recorded", "planned"])
def test_the_pointer_shows_the_tensor_at_an_address_and_layer(view: View, name: str) -> None:
    page = view(planned())
    page.press(f"As {name}")
    found = next(one for one in page.data["maps"] if one["name"] == name)
    boxes = {key: unpacked(values) for key, values in found["boxes"].items()}
    names = page.data["tensors"]["name"]
    box = next(
        at for at in range(len(boxes["tensor"])) if names[boxes["tensor"][at]] == "1.weight1"
    )
    across = (boxes["first"][box] + boxes["last"][box] + 1) / 2 / PROFILE.stretch_count
    page.point(across, (boxes["begin"][box] + boxes["past"][box]) / 2 / found["pages"], click=True)
    shown = page.text("#tooltip")
    assert shown.startswith("1.weight1\nparameter, 32.0 KiB")
    stretch = int(across * PROFILE.stretch_count)
    assert page.data["places"][stretch] in shown
    assert page.text("#details h3") == "1.weight1"
    assert page.text("#table tr[aria-selected=true] td") == "1.weight1"
    assert page.data["places"][stretch] in page.text("#readout")


def test_a_selected_tensor_has_its_reason_and_its_moves(view: View) -> None:
    page = view(planned())
    page.press("Moves")
    page.click("#table tr.row")
    name = page.text("#table tr[aria-selected=true] td")
    table = page.data["tensors"]
    at = int(np.argmax(unpacked(table["moves"])))
    assert unpacked(table["moves"])[table["name"].index(name)] == unpacked(table["moves"])[at] > 0
    details = page.text("#details")
    assert table["reasons"][unpacked(table["reason"])[table["name"].index(name)]] in details
    assert "to fast from boundary" in details


def test_the_timeline_has_the_figures_of_both_groups(view: View) -> None:
    page = view(planned())
    for group, button in (("tier", None), ("kind", "By kind")):
        if button is not None:
            page.press(button)
        line = next(one for one in page.data["timelines"] if one["group"] == group)
        legend = page.text("#timeline-legend")
        for series in line["series"]:
            assert f"max {format_bytes(series['max_bytes'])}" in legend
    assert page.text("#readout").startswith(f"Peak {format_bytes(PROFILE.peak_bytes)}")


def test_a_page_without_a_plan_has_no_column_of_plans(view: View) -> None:
    page = view(trace_report(TRACE, PROFILE, "a trace"))
    heads = page.text("#table thead")
    assert "Hotness" in heads
    assert "Reason" not in heads
    assert page.run("return document.querySelectorAll('#moves canvas').length") == 0


def test_a_page_of_a_live_plan_has_no_recorded_map(view: View) -> None:
    plan = PlanRequest("sentinel", PROFILE, two_tiers(), PROFILE.peak_bytes // 3).answer()
    page = view(plan_report(plan, PROFILE, TRACE.names, "plan of process 7"))
    assert page.text("h1") == "plan of process 7"
    assert page.text("#map-names") == ""
    assert "move to fast starts" in page.text("#map-legend")


def test_hostile_names_are_shown_as_text(view: View) -> None:
    names = {address: TensorName("parameter", HOSTILE) for address in TRACE.names}
    layers = tuple(HOSTILE + str(at) for at in range(len(TRACE.layers)))
    page = view(replace(planned(replace(TRACE, names=names, layers=layers)), title=HOSTILE))
    assert page.run("return [document.scripts.length, document.images.length]") == [2, 0]
    page.search("</script><img")
    assert page.column("Name")[0].startswith("</script><img src=x onerror=alert(1)><!--")
    page.click("#table tr.row")
    page.point(0.5, 0.01)
    assert "</script><img" in page.text("#tooltip")
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [1280, 600])
def test_the_page_fits_into_the_window_and_loads_nothing(view: View, width: int) -> None:
    page = view(planned(), width)
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    assert page.run("return performance.getEntriesByType('resource').length") == 0


def test_the_colour_scheme_of_the_system_is_used(view: View) -> None:
    page = view(planned())
    before = page.picture("#map-image")
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
    page.wait(lambda: page.picture("#map-image") != before)


def packed(values: np.ndarray[Any, Any], kind: str) -> dict[str, str]:
    data = base64.b64encode(values.astype(f"<{kind}").tobytes()).decode()
    return {"type": kind, "data": data}


def repeated(table: dict[str, str], index: np.ndarray[Any, Any]) -> dict[str, str]:
    """The table's values at these indices, each taken modulo the table's length."""
    values = unpacked(table)
    return packed(values[index % len(values)], table["type"])


def enlarge(data: dict[str, Any]) -> None:
    """Repeat the figures of a page until it has as many tensors, cells and points as possible."""
    many, columns = np.arange(limits.TENSORS_MAX), np.arange(limits.MAP_COLUMNS)
    count, stretches = len(data["tensors"]["name"]), len(data["places"])
    for name, column in data["tensors"].items():
        if isinstance(column, dict):
            data["tensors"][name] = repeated(column, many)
        elif isinstance(column, list) and name != "reasons":
            data["tensors"][name] = [column[at % count] for at in many.tolist()]
    data["tensors"]["name"] = [f"{name} {at}" for at, name in enumerate(data["tensors"]["name"])]
    for found in data["maps"]:
        for name, table in found["boxes"].items():
            found["boxes"][name] = repeated(table, many)
        for name in ("cells", "accessed"):
            cells = unpacked(found[name]).reshape(found["rows"], stretches)
            rows = np.arange(limits.MAP_ROWS) % found["rows"]
            found[name] = packed(cells[rows][:, columns % stretches], "u1")
        found["places"] = [found["places"][row] for row in rows.tolist()]
        found["rows"], found["columns"] = limits.MAP_ROWS, packed(columns, "u4")
    end_ms = unpacked(data["begins_ms"])[-1]
    data["begins_ms"] = packed(np.linspace(0, end_ms, limits.MAP_COLUMNS + 1), "f8")
    data["places"] = [data["places"][at % stretches] for at in columns.tolist()]
    data["runs"] = [[f"layer {at}", at, at + 1] for at in columns.tolist()]
    data["phases"][-1][2] = limits.MAP_COLUMNS
    for name in ("up_bytes", "down_bytes", "late_bytes", "count", "waits"):
        data["plan"][name] = repeated(data["plan"][name], columns)
    points = np.arange(limits.TIMELINE_POINTS)
    for line in data["timelines"]:
        line["times_ms"] = packed(np.linspace(0, end_ms, limits.TIMELINE_POINTS), "f8")
        for series in line["series"]:
            series["bytes"] = repeated(series["bytes"], points)


def test_the_largest_page_is_drawn(view: View, capsys: pytest.CaptureFixture[str]) -> None:
    """No report page has more tensors, cells or points than this one, however large the trace."""
    page = view(planned(), change=enlarge)
    assert page.text("#count").startswith(f"{limits.TENSORS_MAX} of {limits.TENSORS_MAX}")
    metrics = page.metrics()
    with capsys.disabled():
        print(
            f"\n{limits.TENSORS_MAX} tensors: {metrics['TaskDuration']:.2f} s of CPU time in the"
            f" page's main thread, {metrics['ScriptDuration']:.2f} s of it in scripts"
        )
    assert metrics["TaskDuration"] < DRAWING_S
    page.search("weight0")
    assert all("weight0" in name for name in page.column("Name"))
