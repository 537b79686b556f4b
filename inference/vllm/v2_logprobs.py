"""Logprobs of a token that the exit put in place of the sampled one, in Model Runner V2.

V2 takes logprobs while it samples, before the exit is decided. The logits that it took them from
are kept for the step, so that id, logprob and rank of a replaced token come from the same numbers
by the same function, in every `logprobs_mode`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class Kept:
    """The logits behind a step's logprobs, in row order.

    Args:
        sampler: takes the logprobs of steps without drafts (`Sampler.sample`).
        rejection_sampler: those of steps with drafts (`RejectionSampler._get_logprobs_tensors`),
            in chunks of whole requests where the batch is large.
    """

    def __init__(self, sampler: Any, rejection_sampler: Any) -> None:
        self._chunks: list[Tensor] = []
        self._keeps = False
        self._is_processed = sampler.logprobs_mode.startswith("processed")
        self._is_logits = sampler.logprobs_mode.endswith("logits")
        self._watch_sampler(sampler)
        self._watch_rejection_sampler(rejection_sampler)

    def _watch_sampler(self, sampler: Any) -> None:
        inner = sampler.sample

        def sample(logits: Tensor, *args: Any, **kwargs: Any) -> Any:
            sampled, processed = inner(logits, *args, **kwargs)
            if self._keeps and kwargs.get("return_logprobs"):
                self._chunks.append(processed if self._is_processed else logits)
            return sampled, processed

        sampler.sample = sample

    def _watch_rejection_sampler(self, rejection_sampler: Any) -> None:
        inner = rejection_sampler._get_logprobs_tensors

        def get(sampled: Tensor, num_sampled: Tensor, logits: Tensor, *rest: Any) -> Any:
            tensors = inner(sampled, num_sampled, logits, *rest)
            if self._keeps and tensors is not None:
                self._chunks.append(logits)
            return tensors

        rejection_sampler._get_logprobs_tensors = get

    @contextmanager
    def keeping(self, wanted: bool) -> Iterator[None]:
        """Keep the logits of the step inside; forget them on the way out."""
        self._keeps = wanted
        try:
            yield
        finally:
            self._keeps = False
            self._chunks.clear()

    def patch(self, tensors: Any, rows: Tensor, ids: Tensor, changed: Tensor) -> None:
        """Write id, logprob and rank of changed tokens into a step's logprobs.

        Args:
            tensors: vLLM's `LogprobsTensors`, `[L, 1 + k]` and `[L]`, edited in place.
            rows: `[B] int64`, distinct rows of those tensors, one a request.
            ids: `[B] int64`, the token at that row.
            changed: `[B] bool`, which of them to write.
        """
        from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores

        first = 0
        for logits in self._chunks:
            count = logits.shape[0]
            inside = changed & (rows >= first) & (rows < first + count)
            at = (rows - first).clamp(0, count - 1)
            new = compute_topk_scores(logits[at], 0, ids.clamp_min(0), logits_mode=self._is_logits)
            pairs = (
                (tensors.logprob_token_ids[:, 0], new.logprob_token_ids[:, 0]),
                (tensors.logprobs[:, 0], new.logprobs[:, 0]),
                (tensors.selected_token_ranks, new.selected_token_ranks),
            )
            for target, value in pairs:
                target[rows] = torch.where(inside, value.to(target.dtype), target[rows])
            first += count
