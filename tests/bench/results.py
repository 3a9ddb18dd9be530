# SPDX-License-Identifier: Apache-2.0
"""The result file of a benchmark that measures model by model and can be resumed."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def earlier_models(output: Path, settings: Json) -> Json:
    """Return the models already in the file. Raises RuntimeError if the file has other settings."""
    try:
        found = json.loads(output.read_text())
    except FileNotFoundError:
        return {}
    if found["settings"] != settings:
        raise RuntimeError(f"{output} has other settings: {found['settings']}")
    models: Json = found["raw"]
    return models


def write_models(output: Path, summary: Json, settings: Json, raw: Json) -> None:
    """Write all models measured so far, the settings and the machine."""
    machine = {"cpus": os.cpu_count(), "kernel": platform.release(), "threads": 1}
    write(output, {**summary, "settings": settings, "machine": machine, "raw": raw})


def write(output: Path, whole: Json) -> None:
    """Write atomically, so that a concurrent reader sees the old or the new file."""
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(output.name + ".part")
    part.write_text(json.dumps(whole, indent=1) + "\n")
    part.rename(output)
