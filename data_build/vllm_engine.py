"""The target in this process: vLLM's `LLMEngine`, stepped by hand.

Seams of vLLM that are used here: `LLM(...)`, `LLM.llm_engine.add_request`, `.step`,
`.reset_prefix_cache`, `LLM.get_metrics`, and of a `RequestOutput` `num_cached_tokens` and the
completion's `token_ids`, `logprobs`, `finish_reason`.
"""

from __future__ import annotations

import gc
import os
from typing import Any

from data_build.config import Engine as EngineSettings
from data_build.engine import Completion, Request
from specexit.engine_env import base_engine_arguments, has_gpu, prepare_in_process_engine
from specexit.errors import ConfigError

CPU_BLOCK_SIZE = (
    32  # vLLM's CPU attention wants a multiple of 32; a small block wastes less prefill
)

_COUNTERS = {
    "vllm:prompt_tokens": "prompt_tokens",
    "vllm:prompt_tokens_cached": "prompt_tokens_cached",
    "vllm:generation_tokens": "generation_tokens",
    "vllm:num_preemptions": "preemptions",
}


class VllmEngine:
    """One copy of the target."""

    exact_replay = True

    def __init__(
        self,
        target: str,
        settings: EngineSettings,
        *,
        tokenizer: str | None = None,
        seed: int = 0,
        prefix_caching: bool = True,
        random_sampling: bool = False,
    ) -> None:
        """Load the target.

        Args:
            prefix_caching: off for the baseline without reuse and for brute-force checks.
            random_sampling: the run samples with per-request seeds, which vLLM's CPU runner only
                supports without chunked prefill.
        """
        if settings.kv_cache_gib is not None:
            os.environ["VLLM_CPU_KVCACHE_SPACE"] = f"{settings.kv_cache_gib:g}"
        prepare_in_process_engine()
        from vllm import LLM

        arguments = base_engine_arguments(target, max_model_len=settings.max_model_len or 0)
        if settings.max_model_len is None:
            del arguments["max_model_len"]
        arguments.update(
            seed=seed,
            dtype=settings.dtype,
            tensor_parallel_size=settings.tensor_parallel_size,
            max_num_seqs=settings.max_num_seqs,
            enable_prefix_caching=prefix_caching,
            disable_log_stats=False,  # the engine's own counters
        )
        if tokenizer is not None:
            arguments["tokenizer"] = tokenizer
        if settings.block_size is not None:
            arguments["block_size"] = settings.block_size
        elif not has_gpu():
            arguments["block_size"] = CPU_BLOCK_SIZE
        if random_sampling and not has_gpu():
            arguments["enable_chunked_prefill"] = False
        try:
            self._llm: Any = LLM(**{**arguments, **settings.arguments})
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"engine: vLLM cannot load {target}: {error}") from error
        self._engine = self._llm.llm_engine
        self.capacity = settings.max_num_seqs
        self.max_model_len = int(self._llm.model_config.max_model_len)

    def submit(self, request: Request) -> None:
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind

        options = dict(request.sampling or {"temperature": 0.0})
        if options.get("temperature", 1.0) > 0 and request.seed is not None:
            options["seed"] = request.seed
        params = SamplingParams(
            **options,
            max_tokens=request.max_tokens,
            logprobs=0,  # of the sampled token only
            # ids are enough, except for a contract, which reads the text as it grows
            detokenize=request.contract is not None,
            extra_args={"contract": request.contract} if request.contract else None,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._engine.add_request(request.key, tokens_input(request.prompt_ids), params)

    def collect(self) -> list[tuple[str, Completion]]:
        while self._engine.has_unfinished_requests():
            finished = [out for out in self._engine.step() if out.finished]
            if finished:
                return [(out.request_id, _completion(out)) for out in finished]
        return []

    def counters(self) -> dict[str, float]:
        totals: dict[str, float] = dict.fromkeys(_COUNTERS.values(), 0.0)
        for metric in self._llm.get_metrics():
            name = _COUNTERS.get(metric.name)
            if name is not None:
                totals[name] += metric.value
        return totals

    def forget(self) -> None:
        if not self._engine.reset_prefix_cache():
            raise AssertionError("vLLM still holds KV blocks although no request runs")

    def close(self) -> None:
        self._engine.engine_core.shutdown()
        del self._engine, self._llm
        gc.collect()


def _completion(out: Any) -> Completion:
    """Translate a finished `RequestOutput`."""
    first = out.outputs[0]
    ids = list(first.token_ids)
    logprobs = [step[i].logprob for step, i in zip(first.logprobs or (), ids, strict=False)]
    return Completion(ids, logprobs, str(first.finish_reason), out.num_cached_tokens or 0)
