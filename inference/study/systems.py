"""Run decoding systems on one set of questions in one process, so that only ratios within it count.

A system is a target with or without a draft head, an exit policy and an answer contract. Engines
are shared: systems that differ only in per-request arguments use the same one.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specexit.engine_env import base_engine_arguments, prepare_in_process_engine
from specexit.think import ThinkFormat

WORKER = "inference.vllm.SpecExitWorker"
SCHEDULER = "inference.vllm.SpecExitScheduler"


@dataclass(frozen=True)
class System:
    """One way of answering.

    Attributes:
        name: what the table calls it.
        head: folder of the draft head; None decodes without a drafter.
        exits: whether SpecExit's worker runs (False: stock vLLM).
        policy: policy overrides of every request; None takes the head's own.
        ace: whether each request ends by its question's answer contract; else the model finishes.
        arguments: further sampling arguments, such as `thinking_token_budget`.
    """

    name: str
    head: Path | None = None
    exits: bool = False
    policy: dict[str, Any] | None = None
    ace: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class Answered:
    """What one request gave.

    Attributes:
        suffix: ids that were put after the question's prompt.
        token_ids: the generated tokens.
        text: their text.
        finish_reason, stop_reason: as vLLM reports them.
        seconds: from submission to the last token.
        steps: engine steps that gave this request tokens after the first one.
        record: SpecExit's record (exit kind, position, signals), None for stock systems.
    """

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    seconds: float = 0.0
    steps: int = 0
    record: dict[str, Any] | None = None
    suffix: tuple[int, ...] = ()


class Engines:
    """The vLLM engines of a run, made on first use and shared between systems."""

    def __init__(
        self,
        target: str | Path,
        *,
        num_speculative_tokens: int = 3,
        max_model_len: int = 2048,
        max_num_seqs: int = 32,
        dtype: str = "bfloat16",
        seed: int = 0,
        **arguments: Any,
    ) -> None:
        prepare_in_process_engine()
        self._arguments = base_engine_arguments(
            str(target), max_model_len=max_model_len, seed=seed
        ) | {
            "dtype": dtype,
            "max_num_seqs": max_num_seqs,
            "enable_prefix_caching": False,  # a system must not profit from the one before it
            **arguments,
        }
        self._num_speculative_tokens = num_speculative_tokens
        self._made: dict[tuple[Path | None, bool, bool], Any] = {}

    def of(self, system: System) -> Any:
        """The `vllm.LLM` that serves a system."""
        has_budget = "thinking_token_budget" in system.arguments
        key = (system.head, system.exits, has_budget)
        if key not in self._made:
            from vllm import LLM

            arguments = dict(self._arguments)
            if system.head is not None:
                arguments["speculative_config"] = {
                    "method": "eagle3",
                    "model": str(system.head),
                    "num_speculative_tokens": self._num_speculative_tokens,
                }
            if system.exits:
                arguments |= {"worker_cls": WORKER, "scheduler_cls": SCHEDULER}
            if has_budget:  # costs time in every step, so only where it is used
                arguments["reasoning_config"] = _think_tags(arguments["model"])
            self._made[key] = LLM(**arguments)
        return self._made[key]

    def close(self) -> None:
        """Drop the engines and their memory."""
        for llm in self._made.values():
            llm.llm_engine.engine_core.shutdown()
        self._made.clear()
        gc.collect()


def _think_tags(target: str) -> dict[str, str]:
    """vLLM's `reasoning_config` for the target's own tags."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    think = ThinkFormat.from_tokenizer(tokenizer)
    return {
        "reasoning_start_str": tokenizer.decode(think.start_ids),
        "reasoning_end_str": tokenizer.decode(think.end_ids),
    }


def sampling_params(
    system: System, *, max_tokens: int, contract: str | None = None, seed: int | None = None
) -> Any:
    """Greedy sampling parameters of a system's request, streamed as deltas.

    Args:
        contract: of the request's question, for systems with ACE.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    extra: dict[str, Any] = {}
    if system.exits and system.policy is not None:
        extra["specexit"] = system.policy
    if system.ace and contract is not None:
        extra["contract"] = contract
    return SamplingParams(
        temperature=0.0,
        max_tokens=max_tokens,
        seed=seed,
        extra_args=extra or None,
        output_kind=RequestOutputKind.DELTA,
        skip_special_tokens=False,
        **system.arguments,
    )


def answer(llm: Any, prompts: Sequence[Sequence[int]], params: Sequence[Any]) -> list[Answered]:
    """Run prompts (token ids) together through one engine, step by step, until all have finished.

    The engine is driven here rather than by `LLM.generate` because only the step-wise deltas give
    acceptance length and time per request when several engines share a process.
    """
    engine = llm.llm_engine
    results = [Answered() for _ in prompts]
    started = time.perf_counter()
    for i, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(str(i), {"prompt_token_ids": list(prompt)}, each.clone())
    while engine.has_unfinished_requests():
        for output in engine.step():
            _take(results[int(output.request_id)], output, time.perf_counter() - started)
    return results


def acceptance_length(answers: Iterable[Answered]) -> float | None:
    """Mean tokens per verification step; the first token of a request comes from its prefill."""
    counted = [a for a in answers if a.steps]
    steps = sum(a.steps for a in counted)
    return sum(len(a.token_ids) - 1 for a in counted) / steps if steps else None


def _take(result: Answered, output: Any, seconds: float) -> None:
    completion = output.outputs[0]
    if completion.token_ids:
        result.steps += bool(result.token_ids)
        result.token_ids.extend(completion.token_ids)
        result.seconds = seconds
    result.text += completion.text
    if output.finished:
        result.seconds = seconds
        result.finish_reason = completion.finish_reason
        result.stop_reason = completion.stop_reason
        record = (output.kv_transfer_params or {}).get("specexit")
        result.record = record if isinstance(record, dict) else None
