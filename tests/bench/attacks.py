# SPDX-License-Identifier: Apache-2.0
"""Measures how attacks affect the daemon's other users: `python -m tests.bench.attacks`.

Runs the attacks of tests/hostile several times, except those marked `long` or `alone`. Some attacks
have a daemon of their own, which manages no training. During all other attacks, the attacked daemon
manages a training; most of these attacks last longer here than in a normal run of the tests. The
training has a CPU to itself; the daemon and the attackers share another CPU. Any program on the
other CPU slows the training down, because the two CPUs share caches, memory and often a core. Each
attack on the daemon that manages the training is therefore repeated on a second daemon, which does
not manage this training; this repetition is the control. The figure for the speed is the training's
speed during the attack, divided by its speed during the control. Attacks that act on the training
itself have neither a control nor this figure. Writes build/bench/attacks.json and prints a table
with a row per attack. Needs an idle machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from tests.bench.figures import table
from tests.bench.policy_figures import claim
from tests.bench.results import Json, write
from tests.hostile.figures import Figures

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "build/bench"
ROUNDS = 3
STATUS_MAX_S = 1.0
SPEED_SHARE_MIN = 0.95
RESIDENT_BYTES_MAX = 120 << 20
LOG_BYTES_PER_MIN_MAX = 1e6


def one_round(select: str, file: Path) -> list[Figures]:
    """Run the selected attacks once, and their controls. Raises RuntimeError if a test fails."""
    file.parent.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests/hostile",
        "-q",
        "-m",
        "not long and not alone",
    ]
    command += ["--attack-figures", str(file), *(["-k", select] if select else [])]
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        raise RuntimeError("a test failed; see its output above")
    return [Figures(**one) for one in json.loads(file.read_text())]


def speed_share(attack: str, figures: list[Figures]) -> float | None:
    """The training's speed during an attack, divided by its speed during the control; None if one
    of the two was not measured."""
    speeds = {one.control: one.steps_per_s for one in figures if one.attack == attack}
    measured, control = speeds.get(False), speeds.get(True)
    return measured / control if measured and control else None


def summary(rounds: list[list[Figures]]) -> list[Json]:
    """Return one row per attack: the longest time to answer `status`, the largest memory and the
    fastest growth of the log in any round, and the median of speed_share() over the rounds."""
    rows = []
    for name in dict.fromkeys(figures.attack for one in rounds for figures in one):
        found = [
            figures
            for one in rounds
            for figures in one
            if figures.attack == name and not figures.control
        ]
        shares = [share for one in rounds if (share := speed_share(name, one)) is not None]
        rows.append(
            {
                "attack": name,
                "rounds": len(found),
                "status_worst_s": max(figures.status_worst_s for figures in found),
                "peak_bytes": max(figures.peak_bytes for figures in found),
                "log_bytes_per_min": max(figures.log_bytes_per_min for figures in found),
                "speed_share": median(shares) if shares else None,
                "speed_shares": shares,
            }
        )
    return rows


def least_speed_share(rows: list[Json]) -> float | None:
    """The lowest speed_share of all attacks; None if it was measured for none of them."""
    measured = (row["speed_share"] for row in rows if row["speed_share"] is not None)
    return min(measured, default=None)


def text(rows: list[Json]) -> str:
    """Format the rows as a table, then say for each goal whether all rows meet it."""
    lines = [
        [
            row["attack"],
            f"{row['status_worst_s'] * 1000:.0f}",
            f"{row['peak_bytes'] / 2**20:.0f}",
            f"{row['log_bytes_per_min'] / 1000:.0f}",
            "-"
            if row["speed_share"] is None
            else f"{row['speed_share']:.3f} ({min(row['speed_shares']):.3f})",
        ]
        for row in rows
    ]
    head = ["attack", "status, ms", "peak, MiB", "log, kB/min", "speed, median (least)"]
    answer_s = max(row["status_worst_s"] for row in rows)
    peak = max(row["peak_bytes"] for row in rows)
    log = max(row["log_bytes_per_min"] for row in rows)
    speed = least_speed_share(rows)
    speed_text = "not measured" if speed is None else f"{speed:.1%}"
    goals = (
        (f"status is answered within 1 s ({answer_s:.2f} s)", answer_s <= STATUS_MAX_S),
        (
            f"the training keeps 95 % of its speed ({speed_text})",
            speed is not None and speed >= SPEED_SHARE_MIN,
        ),
        (f"the daemon stays below 120 MiB ({peak / 2**20:.0f})", peak <= RESIDENT_BYTES_MAX),
        (f"the daemon logs at most 1 MB a minute ({log / 1e6:.2f})", log <= LOG_BYTES_PER_MIN_MAX),
    )
    return "\n".join([table(head, lines), "", *(claim(what, holds) for what, holds in goals)])


def main() -> None:
    """Run the rounds; write the result file and print the table. Fails if speed_share() is None
    for every attack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=BENCH / "attacks.json")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "-k",
        dest="select",
        default="",
        help="run only attacks that match this pytest -k expression",
    )
    arguments = parser.parse_args()
    part = arguments.output.with_suffix(".round.json")
    rounds = [one_round(arguments.select, part) for _ in range(arguments.rounds)]
    part.unlink()
    rows = summary(rounds)
    write(arguments.output, {"attacks": rows})
    print("\n" + text(rows))
    print(f"\nwrote {arguments.output}")
    if least_speed_share(rows) is None:
        sys.exit("the training's speed was measured during none of the attacks")


if __name__ == "__main__":
    main()
