"""Environment of an in-process vLLM, set before vLLM is imported. Imports no engine itself."""

from __future__ import annotations

import os
import warnings
from typing import Any

_CPU_DEFAULTS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives in this process: deterministic
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_LOGGING_LEVEL": "ERROR",  # its CPU backend warns of its own thread settings
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",  # a second thread buys nothing for small models, two processes collapse
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def prepare_in_process_engine() -> None:
    """Set the defaults that an in-process CPU engine wants; what the user has set stays.

    On a machine with a GPU only the single-process setting is made.
    """
    # a deprecation inside vLLM's start-up scan of all modules
    warnings.filterwarnings("ignore", r".*reduce_op.*", FutureWarning)
    if has_gpu():
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        return
    for name, value in _CPU_DEFAULTS.items():
        os.environ.setdefault(name, value)


def own_core(place: int, count: int) -> dict[str, str]:
    """Environment that gives CPU process number `place` of `count` a core of its own.

    vLLM pins itself, and two of its processes on one core are slower than one. Empty on a GPU
    machine, where there are fewer cores than processes, and where the user has bound them.
    """
    cores = sorted(os.sched_getaffinity(0))
    if has_gpu() or count > len(cores) or "VLLM_CPU_OMP_THREADS_BIND" in os.environ:
        return {}
    return {"VLLM_CPU_OMP_THREADS_BIND": str(cores[place])}


def has_gpu() -> bool:
    """Whether torch sees an accelerator."""
    import torch

    return torch.cuda.is_available()


def base_engine_arguments(model: str, *, max_model_len: int, seed: int = 0) -> dict[str, Any]:
    """Arguments for `vllm.LLM` that every in-process engine here shares."""
    arguments: dict[str, Any] = {
        "model": model,
        "max_model_len": max_model_len,
        "seed": seed,
        "use_tqdm_on_load": False,  # callers show progress of their own
    }
    if not has_gpu():
        arguments["enforce_eager"] = True  # compilation costs 22-45 s at start
    return arguments
