"""Features of an MTP draft: what its input projection reads, for each family of models.

A row of an MTP draft combines the target's hidden state at one token with the embedding of the
next one, each normalised, in an order that differs per family. So the features of token x_i are
those of `(h_{i-1}, x_i)`: in a verification step they come from the row before; those of x_0 were
computed when x_0 was sampled, and their projection waits in the slot's state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from inference.vllm.exit_state import ExitState
from specexit.errors import CheckpointError, ConfigError


@dataclass(frozen=True)
class Family:
    """Where a family keeps the two norms, the name of its projection, and the order of its input.

    `models` names the vLLM modules whose forward was read.
    """

    hidden_norm: str
    token_norm: str
    projection: str
    hidden_first: bool
    models: str


FAMILIES = (
    Family("hidden_layernorm", "token_layernorm", "input_proj", True, "mimo_mtp"),
    Family(
        "hnorm",
        "enorm",
        "eh_proj",
        False,
        "deepseek_mtp, glm4_moe_mtp, glm4_moe_lite_mtp, glm_ocr_mtp, mimo_v2_mtp, hy_v3_mtp, "
        "bailing_moe_mtp, longcat_flash_mtp, openpangu_mtp, step3p5_mtp",
    ),
    Family(
        "pre_fc_norm_hidden",
        "pre_fc_norm_embedding",
        "fc",
        False,
        "qwen3_next_mtp, qwen3_5_mtp, exaone_moe_mtp, exaone4_5_mtp",
    ),
)


class MtpFeatures:
    """Reads `[norm(hidden), norm(embedding)]` with the draft's own modules.

    Args:
        draft: vLLM's MTP model; its first layer is the one that drafts the next token.

    Raises:
        ConfigError: the model is of no known family.
    """

    def __init__(self, draft: Any) -> None:
        inner = getattr(draft, "model", draft)
        for family in FAMILIES:
            for owner in _owners(inner):
                if all(
                    hasattr(owner, n)
                    for n in (family.hidden_norm, family.token_norm, family.projection)
                ):
                    self._hidden_norm: Callable[[Tensor], Tensor] = getattr(
                        owner, family.hidden_norm
                    )
                    self._token_norm: Callable[[Tensor], Tensor] = getattr(owner, family.token_norm)
                    self._embed: Callable[[Tensor], Tensor] = inner.embed_tokens
                    self.family = family
                    return
        known = "; ".join(family.models for family in FAMILIES)
        raise ConfigError(
            f"specexit: speculative method 'mtp' with {type(draft).__name__} is not supported; "
            f"known families: {known}"
        )

    def check_width(self, in_features: int, hidden_size: int) -> None:
        """Refuse a signal head that reads something else.

        Raises:
            CheckpointError: names both widths.
        """
        if in_features != 2 * hidden_size:
            raise CheckpointError(
                f"head: in_features is {in_features}, an MTP draft of this target gives "
                f"{2 * hidden_size} (twice the hidden size); train the signals for method mtp"
            )

    def __call__(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """`hidden [N, H]` of some tokens and the ids `tokens [N]` after them -> `[N, 2H]`."""
        states = self._hidden_norm(hidden.contiguous())
        embeddings = self._token_norm(self._embed(tokens))
        pair = [states, embeddings] if self.family.hidden_first else [embeddings, states]
        return torch.cat(pair, -1)


class MtpStep(NamedTuple):
    """Projections of one verification step: of its inputs, and of its outputs (the next inputs).

    Attributes:
        inputs, outputs: `[B, W, D] float32`.
    """

    inputs: Tensor
    outputs: Tensor


def project_step(
    features: MtpFeatures,
    state: ExitState,
    slots: Tensor,
    hidden: Tensor,
    rows: Tensor,
    starts: Tensor,
    inputs: Tensor,
    sampled: Tensor,
    following: Tensor | None,
) -> MtpStep:
    """Project a step's tokens.

    Args:
        slots: `[B] int64`.
        hidden: `[N, H]`, the target's hidden states of all rows of the batch.
        rows: `[B, W] int64`, row of each input.
        starts: `[B]`, the request's first row.
        inputs: `[B, W] int64`, x_0..x_K.
        sampled: `[B, W] int64`, o_0..o_K; any valid id at and after the accepted ones.
        following: `[B] int64`, where the batch has prompts: the next known id of a request that
            does not sample yet, -1 for those that do.
    """
    B, W = rows.shape
    if following is not None:
        sampled = torch.cat(
            [torch.where(following < 0, sampled[:, 0], following)[:, None], sampled[:, 1:]], 1
        )
    project = state.head.project
    outputs = project(features(hidden[rows.flatten()], sampled.flatten())).view(B, W, -1)
    first = state.waiting[slots]
    if following is not None:
        # the last token of a prompt was never sampled: the row before it is here, if in the chunk
        before = rows[:, 0] - 1
        own = project(features(hidden[before.clamp_min(0)], inputs[:, 0]))
        first = torch.where((before >= starts)[:, None], own, first)
    return MtpStep(torch.cat([first[:, None], outputs[:, :-1]], 1), outputs)


def keep_last(state: ExitState, slots: Tensor, step: MtpStep, num_sampled: Tensor) -> None:
    """Let the projection of each request's last token wait for the next step.

    That of a forced id is of the id it replaced; an id after the end of the thinking has no
    signals, so nothing reads it.
    """
    last = (num_sampled - 1).clamp_min(0)
    index = last[:, None, None].expand(-1, 1, step.outputs.shape[2])
    state.waiting[slots] = step.outputs.gather(1, index)[:, 0]


def target_hidden(model: Any, hidden: Tensor) -> Tensor:
    """The hidden states that an MTP draft reads: some targets keep others than they return."""
    get = getattr(model, "get_mtp_target_hidden_states", None)
    kept = get() if get is not None else None
    return hidden if kept is None else kept[: hidden.shape[0]]


def _owners(inner: Any) -> list[Any]:
    owners = [inner]
    for name in ("mtp_layers", "layers"):
        layers = getattr(inner, name, None)
        if layers is not None and len(layers):
            owners.append(next(iter(layers.values() if hasattr(layers, "values") else layers)))
    return owners
