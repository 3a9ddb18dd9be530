# SPDX-License-Identifier: Apache-2.0
"""Draws the dashboards' pictures in docs/grafana: `make dashboard-pictures`.

    python3 -m tests.board_pictures [--draw] [BOARD]...

For each dashboard, runs trainings, sends the dashboard's queries to a Prometheus that scrapes the
daemons, and writes the answers to build/dashboards/BOARD.json. Then draws docs/grafana/BOARD.png
from these answers. Needs root. --draw: only draw, from the answers of the last run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from tests.board_pictures import one_machine, two_machines
from tests.board_pictures.answers import Answers
from tests.board_pictures.draw import draw
from tests.vm.host import REPOSITORY, MachineError, require_ready

MEASURED: dict[str, Callable[[dict[str, Any]], Answers]] = {
    "sentineld": one_machine.measure,
    "sentineld-fleet": two_machines.measure,
}


def main(arguments: list[str]) -> int:
    """Draw the chosen dashboards; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.board_pictures", description=__doc__)
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("boards", nargs="*", metavar="BOARD")
    options = parser.parse_args(arguments)
    for name in options.boards or MEASURED:
        file = REPOSITORY / f"docs/grafana/{name}.json"
        board = json.loads(file.read_text())
        answers = REPOSITORY / f"build/dashboards/{name}.json"
        if not options.draw:
            try:
                require_ready()
                MEASURED[name](board).save(answers)
            except MachineError as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
        draw(board, Answers.load(answers), file.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
