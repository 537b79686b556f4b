"""SpecExit in vLLM: the worker, the scheduler that carries its record, and the front end's part."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_LAZY = {
    "SpecExitWorker": "inference.vllm.worker",
    "SpecExitScheduler": "inference.vllm.scheduler",
}


def __getattr__(name: str) -> Any:
    """Import the classes that vLLM resolves by name on first use (they import vLLM)."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'inference.vllm' has no attribute {name!r}")
