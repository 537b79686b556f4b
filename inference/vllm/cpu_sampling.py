"""Mend the temperature of sampled requests where vLLM verifies drafts on a CPU.

vLLM 0.32's `_expand_kernel_impl` (`vllm/utils/cpu_triton_utils.py`) writes into an int64 copy of
its output, so with floating-point values, the temperatures, the result is lost: logits of every
request in a batch that samples are divided by uninitialised memory, greedy requests beside it
included. SpecExit's worker puts a tensor expression in its place, and only where a trial shows the
fault.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

logger = logging.getLogger(__name__)


def expands_wrongly() -> bool:
    """Whether this vLLM's CPU kernel loses floating-point values."""
    from vllm.v1.sample import rejection_sampler

    value = torch.tensor([0.5])
    out = rejection_sampler.expand_batch_to_tokens(value, torch.tensor([2], dtype=torch.int32), 2)
    return not bool((out == value).all())


def mend() -> bool:
    """Replace `rejection_sampler.expand_batch_to_tokens` if it is wrong; True if it was."""
    from vllm.v1.sample import rejection_sampler

    if not expands_wrongly():
        return False
    rejection_sampler.expand_batch_to_tokens = expand
    logger.warning(
        "SpecExit: this vLLM loses temperatures when it verifies drafts on a CPU; mended here"
    )
    return True


def expand(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """What vLLM's function promises: row b of `x [B]` for each of its tokens.

    Args:
        cu_num_tokens: `[B]`, tokens of the rows up to and including each.
        num_tokens: of all rows.
        replace_from, replace_to: a value to replace, and by what.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    rows = torch.repeat_interleave(x, counts, output_size=num_tokens)
    return torch.where(rows == replace_from, torch.full_like(rows, replace_to), rows)
