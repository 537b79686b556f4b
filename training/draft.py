"""The draft of a run: made in the target's shape, or taken from where it starts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from specexit.errors import CheckpointError
from specexit.heads.draft import Draft
from specexit.heads.eagle3 import Eagle3Head
from specexit.heads.eagle3_config import Eagle3Config, default_aux_layer_ids
from specexit.heads.mtp import MtpConfig, MtpHead
from specexit.heads.mtp_files import has_layer
from training.config import TrainConfig
from training.examples import Thinking
from training.features import OnlineTarget
from training.unroll import unroll

Source = Literal["features", "draft"]
log = logging.getLogger(__name__)
DraftType = TypeVar("DraftType", Eagle3Head, MtpHead)


def make_draft(config: TrainConfig, target: str, target_config: Any) -> Draft:
    """The draft in fp32 on the CPU; random from the seed where there is nothing to start from.

    Raises:
        CheckpointError: `draft.init_from` is for another target, or incomplete.
        ConfigError: the target's MTP is not known here.
    """
    settings = config.draft
    if settings.method == "mtp":
        return _mtp(settings.init_from, local_folder(target), config.seed)
    text = target_config.get_text_config()
    if settings.init_from is not None:
        head = Eagle3Head.load(settings.init_from)
        _check_shape(settings.init_from, head, head.config.target_hidden_size, text)
        return head
    dtype: str = config.export_dtype
    if dtype == "auto":
        found = getattr(text, "dtype", None) or torch.float32
        dtype = str(found).removeprefix("torch.")
    sizes: dict[str, Any] = {}
    if settings.num_attention_heads is not None:
        heads = settings.num_attention_heads
        sizes |= {"num_attention_heads": heads, "num_key_value_heads": heads}
    if settings.intermediate_size is not None:
        sizes["intermediate_size"] = settings.intermediate_size
    shape = Eagle3Config.for_target(
        target_config,
        aux_layer_ids=settings.aux_layer_ids or default_aux_layer_ids(text.num_hidden_layers),
        draft_vocab_size=settings.draft_vocab_size,
        dtype=dtype,
        style=settings.style,
        norm_before_residual=settings.norm_before_residual,
        norm_before_fc=settings.norm_before_fc,
        fc_norm=settings.fc_norm,
        norm_output=settings.norm_output,
        **sizes,
    )
    return _randomise(Eagle3Head(shape), config.seed)


def bind_target(draft: Draft, target: OnlineTarget) -> Draft:
    """Let the draft use the target's embedding, and an MTP draft its output layer too."""
    if isinstance(draft, MtpHead):
        return draft.bind(target.embedding, target.output_rows)
    return draft.bind_embedding(target.embedding)


def signal_lag(draft: Draft, source: Source) -> int:
    """Rows between a token and the row that the signal head reads for it. A draft layer's output
    of row p has seen token p + 1, so that of a token comes from the row before."""
    return draft.lag if source == "features" else 1


def thinking_inputs(
    draft: Draft,
    states: Tensor,
    ids: Tensor,
    thinking: Thinking,
    source: Source = "features",
) -> Tensor:
    """What the signal head reads at each of T thinking tokens of one sequence.

    Args:
        states: `[n, S]`, the target's states that the draft reads (`draft.select`).
        ids: `[n] int64`.
        thinking: says where the tokens are.

    Returns:
        `[T, F]`, or `[T, H]` of the draft layer's output.
    """
    ids = ids.to(states.device)
    first = thinking.start - signal_lag(draft, source)
    end = first + len(thinking.labels)
    # a draft row reads the token after its own, so one row more than needed
    span = (first, end) if source == "features" else (0, end + 1)
    rows = torch.arange(*span, device=states.device)
    following = ids[(rows + 1).clamp_max(len(ids) - 1)]
    inputs = draft.inputs(states[rows], following, rows)
    if source == "features":
        return inputs
    document = torch.zeros_like(rows)[None]
    hidden = draft.fc(inputs.to(draft.fc.weight.dtype))[None]
    (out,) = unroll(draft, hidden, ids[None, : end + 1], rows[None], document, 1)
    return out[0, first:end]


def local_folder(target: str) -> Path:
    """A target's folder; a hub name's files are fetched."""
    if Path(target).is_dir():
        return Path(target)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(target, allow_patterns=["*.json", "*.safetensors"]))


def _mtp(init_from: str | None, target: Path, seed: int) -> MtpHead:
    own = MtpConfig.read(target)
    if init_from is not None:
        head = MtpHead.load(init_from)
        _check_shape(init_from, head, head.config.hidden_size, own.target)
        return head
    if has_layer(target, own.prefix, own.family):
        return MtpHead.load(target)
    log.warning("draft: %s holds no MTP layer; a random one is trained", target)
    return _randomise(MtpHead(own), seed)


def _randomise(draft: DraftType, seed: int) -> DraftType:
    generator = torch.Generator().manual_seed(seed)
    for parameter in draft.parameters():
        if parameter.dim() > 1:
            std = parameter.shape[-1] ** -0.5
            parameter.data.normal_(0.0, std, generator=generator)
    return draft


def _check_shape(source: str, head: Draft, hidden_size: int, text: Any) -> None:
    if (hidden_size, head.config.vocab_size) != (text.hidden_size, text.vocab_size):
        raise CheckpointError(
            f"draft.init_from: {source} is for a target of hidden size {hidden_size} and "
            f"vocabulary {head.config.vocab_size}; this one has {text.hidden_size} and "
            f"{text.vocab_size}"
        )
