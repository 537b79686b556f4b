"""Environment variables that vLLM's CPU build wants, for commands that start it as a process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

KV_CACHE_GIB = 2


def cpu_environment(current: Mapping[str, str]) -> dict[str, str]:
    """Variables to add on a machine without a GPU; what is set already stays.

    One OpenMP thread is best for small models (a second buys nothing, and two processes with two
    threads on two cores collapse), so it is set where the machine has few cores only.
    """
    wanted = {"VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB)}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if cores is not None and cores <= 4:
        wanted["OMP_NUM_THREADS"] = "1"
    added = {name: value for name, value in wanted.items() if name not in current}
    found = preload(current.get("LD_PRELOAD", ""))
    if found:
        added["LD_PRELOAD"] = found
    return added


def preload(current: str) -> str | None:
    """`LD_PRELOAD` with Intel's OpenMP and tcmalloc where installed; None for no change."""
    wanted = [
        str(path)
        for name in ("libiomp5.so", "libtcmalloc_minimal.so.4")
        if name.split(".")[0] not in current and (path := find_library(name)) is not None
    ]
    if not wanted:
        return None
    return ":".join([*wanted, *([current] if current else [])])


def find_library(name: str) -> Path | None:
    """A shared library in this environment or in the system's usual folders."""
    folders = [Path(sys.prefix) / "lib", *Path("/usr/lib").glob("*-linux-gnu"), Path("/usr/lib64")]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    return None
