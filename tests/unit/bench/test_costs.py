# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the program that counts instructions (tests/bench/costs)."""

from __future__ import annotations

import subprocess
from pathlib import Path

COSTS = Path(__file__).parents[2] / "bench/costs"
HARNESS = """
#define main costs_main
#include "main.c"
#undef main

void cost_plain(void) {}
void cost_armed(void) {}
void cost_observers(void) {}
void cost_hold(void) {}

int main(void)
{
	uint32_t cost[] = {0, 0, 0};
	struct series series;

	rounds = 1;
	series = series_new("cheap");
	series_pages(&series, cost, 3);
	series_print(&series);
	return 0;
}
"""


def test_a_page_that_costs_less_than_an_access_without_a_fault(tmp_path: Path) -> None:
    program = tmp_path / "harness"
    command = ["cc", "-O1", f"-I{COSTS}", "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=HARNESS, text=True, check=True)
    shown = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    mean, median = (float(part.partition("]")[0]) for part in shown.split("[")[1:])
    assert -1e7 < mean == median < 0
