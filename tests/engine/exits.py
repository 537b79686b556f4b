"""Requests with exit policies, and what their outputs must be: shared by the engine tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm import SamplingParams

from tests.engine.chaos import END, ends_paragraph

ORACLE = {
    "worker_cls": "tests.engine.oracle.OracleWorker",
    "scheduler_cls": "inference.vllm.SpecExitScheduler",
}
LENGTH = 90
NEVER = {"thresholds": {"confidence": 1.0}}


def always(after: int = 0, **more: Any) -> dict[str, Any]:
    """A policy that ends the thinking at the first boundary after so many tokens."""
    loose = {"signals": ["remain"], "thresholds": {"remain": 1e9}, "min_think_tokens": after}
    return {**loose, **more}


def params(policy: Any = None, length: int = LENGTH, **more: Any) -> SamplingParams:
    extra = {"specexit": policy} if policy is not None else None
    more = {"temperature": 0, "ignore_eos": True, **more}
    return SamplingParams(max_tokens=length, extra_args=extra, **more)


def draft(chaos: Path, kind: str, K: int) -> dict[str, Any]:
    return {
        "speculative_config": {
            "method": "eagle3",
            "model": str(chaos / kind),
            "num_speculative_tokens": K,
        }
    }


def ids(outputs: list[Any]) -> list[list[int]]:
    return [list(o.outputs[0].token_ids) for o in outputs]


def records(outputs: list[Any]) -> list[dict[str, Any]]:
    return [o.kv_transfer_params["specexit"] for o in outputs]


def first_split(output: list[int], after: int) -> int | None:
    """Index of the first boundary token with at least so many thinking tokens up to it."""
    for i, token in enumerate(output):
        if token == END:
            return None
        if ends_paragraph(output, i) and i + 1 >= after:
            return i
    return None


def check_exits(got: list[list[int]], stock: list[list[int]], after: int) -> int:
    """Every output is stock's up to the boundary, then the think end; returns how many exited."""
    exits = 0
    for output, base in zip(got, stock, strict=True):
        at = first_split(base, after)
        if at is None or at + 1 >= len(base):
            assert output == base
            continue
        assert output[: at + 1] == base[: at + 1]
        assert output[at + 1] == END
        exits += 1
    return exits
