# SPDX-License-Identifier: Apache-2.0
"""The file of a benchmark that measures model by model: written as it goes, and taken up again."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def kept(output: Path, settings: Json) -> Json:
    """Models that the file has for the same settings. Raises RuntimeError."""
    try:
        found = json.loads(output.read_text())
    except FileNotFoundError:
        return {}
    if found["settings"] != settings:
        raise RuntimeError(f"{output} has other settings: {found['settings']}")
    models: Json = found["raw"]
    return models


def write_models(output: Path, summary: Json, settings: Json, raw: Json) -> None:
    """All models so far, and on what they were measured."""
    machine = {"cpus": os.cpu_count(), "kernel": platform.release(), "threads": 1}
    write(output, {**summary, "settings": settings, "machine": machine, "raw": raw})


def write(output: Path, whole: Json) -> None:
    """All at once: whoever reads meanwhile finds the file before."""
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(output.name + ".part")
    part.write_text(json.dumps(whole, indent=1) + "\n")
    part.rename(output)
