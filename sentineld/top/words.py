# SPDX-License-Identifier: Apache-2.0
"""The fixed texts of the live view: its keys and its help."""

from __future__ import annotations

NO_SESSIONS = "no sessions; start a training with: python3 -m sentineld.shim train.py"
KEYS = (
    ("b", "budget"),
    ("p", "policy"),
    ("d", "detach"),
    ("m", "meter"),
    ("r", "record"),
    ("?", "help"),
    ("q", "quit"),
)
"""The keys of the last line, with their meanings."""
HELP = (
    (
        "Keys",
        (
            ("up, down", "choose a session"),
            ("tab", "go to the table of layers, to scroll it, or back"),
            ("b", "change the budget of fast memory"),
            ("p", "change the policy"),
            ("d", "detach: the process continues to run, unmanaged"),
            ("m", "meter one step, which slows it down"),
            ("r", "record a trace, which slows one step down"),
            ("space", "update now"),
            ("q, Ctrl+C", "quit, which cancels a recording or a change of plan"),
        ),
    ),
    (
        "Sessions",
        (
            ("USED", "charged bytes as a share of the budget"),
            ("STEP", "mean time of the steps of the last 5 s"),
            ("VS PLAN", "its difference from the predicted time"),
        ),
    ),
    (
        "Chosen session",
        (
            ("tier N", "resident bytes; dots are free budget"),
            ("moves", "promoted and demoted bytes per second; late moves in total and per second"),
            (
                "step",
                "number and time of the step; the predicted time, and the time with all memory"
                " fast, each with the difference of the step from it",
            ),
            (
                "fast",
                "the share of accesses that the fast tier serves: predicted, and in the last"
                " metered step",
            ),
        ),
    ),
    (
        "Layers",
        (
            ("", "Resident bytes of the tensors that are alive at this moment."),
            (
                "",
                "A tensor counts for the layer of its birth, a persistent tensor for the layer"
                " of its first access in the step.",
            ),
        ),
    ),
)
"""The sections of the help: a title, and terms with their meanings."""
