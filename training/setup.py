"""Everything that a run needs before its first step: data, target, draft, signal head."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specexit.checkpoint import TargetFacts, target_facts
from specexit.dataset import data_hash, read_traces
from specexit.errors import CheckpointError, ConfigError
from specexit.heads.eagle3 import Eagle3Head
from specexit.heads.eagle3_config import Eagle3Config, default_aux_layer_ids
from specexit.think import ThinkFormat
from training.config import TrainConfig
from training.examples import Example, make_examples
from training.features import OnlineTarget, resolve_target
from training.memory import KeptFeatures, keep_in_memory
from training.vocabulary import choose_vocabulary

log = logging.getLogger(__name__)


@dataclass
class Run:
    """What `prepare` made.

    Attributes:
        examples: of the training split, cut to the row length.
        source: states of batches.
        facts: of the target, for the checkpoint.
    """

    config: TrainConfig
    target_path: str
    target: OnlineTarget
    facts: TargetFacts
    think: ThinkFormat
    examples: list[Example]
    draft: Eagle3Head
    source: OnlineTarget | KeptFeatures
    data_hash: str
    coverage: float


def prepare(config: TrainConfig, device: torch.device, *, progress: bool = True) -> Run:
    """Load and check everything. Faults of the input are raised here, before work starts."""
    path = resolve_target(config.target)
    examples_hash = data_hash(config.data)
    tokenizer = _tokenizer(path)
    think = ThinkFormat.from_tokenizer(tokenizer)
    examples = load_examples(config, think)
    target_config = _target_config(path)
    text = target_config.get_text_config()
    check_ids(examples, text.vocab_size)
    draft = _draft(config, target_config)
    dtype = _feature_dtype(config, device)
    target = OnlineTarget(path, draft.config.aux_layer_ids, dtype=dtype, device=device)
    facts = target_facts(path, target_config)
    coverage = _vocabulary(config, draft, examples, target, think)
    if config.draft.init_from is None:
        _initialise(draft, target, config.seed)
    if draft.config.maps_vocabulary:
        kept = draft.t2d.cpu()
        examples = [Example(e.id, e.ids, e.is_target & kept[e.ids], e.thinking) for e in examples]
    draft.to(device).bind_embedding(target.embedding)
    source = _source(config, target, examples, device, progress)
    return Run(config, path, target, facts, think, examples, draft, source, examples_hash, coverage)


def load_examples(config: TrainConfig, think: ThinkFormat) -> list[Example]:
    """Sequences of the kept traces of the training split.

    Raises:
        ConfigError: the split is empty.
    """
    traces = list(read_traces(config.data, "train", kept_only=True))
    if not traces:
        raise ConfigError(
            f"data: {config.data} has no kept trace in split train; look at the drop reasons "
            "with `specexit data inspect`, or build data from more questions"
        )
    examples = make_examples(
        traces,
        span=config.token.span,
        confidence=config.signals.confidence,
        keep_redundant=config.signals.keep_redundant,
        think_end_ids=think.end_ids,
        with_signals=bool(config.signals.heads),
    )
    longest = max(map(len, examples))
    limit = config.batch.max_length
    if longest > limit:
        cut = sum(len(e) > limit for e in examples)
        log.warning(
            "%d of %d traces are longer than batch.max_length %d (the longest has %d tokens) "
            "and are cut off there",
            cut,
            len(examples),
            limit,
            longest,
        )
    return [e.cut(limit) for e in examples]


def check_ids(examples: list[Example], vocab_size: int) -> None:
    """Refuse data of another tokenizer."""
    for one in examples:
        top = int(one.ids.max())
        if top >= vocab_size:
            raise ConfigError(
                f"data: trace {one.id} has token id {top}, the target's vocabulary has "
                f"{vocab_size}; the data belong to another model"
            )


def _tokenizer(path: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


def _target_config(path: str) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(path)


def _feature_dtype(config: TrainConfig, device: torch.device) -> torch.dtype | None:
    if config.features.dtype != "auto":
        return getattr(torch, config.features.dtype)
    return torch.float32 if device.type == "cpu" else None


def _draft(config: TrainConfig, target_config: Any) -> Eagle3Head:
    settings = config.draft
    text = target_config.get_text_config()
    if settings.init_from is not None:
        head = Eagle3Head.load(settings.init_from)
        if (head.config.target_hidden_size, head.config.vocab_size) != (
            text.hidden_size,
            text.vocab_size,
        ):
            raise CheckpointError(
                f"draft.init_from: {settings.init_from} is for a target of hidden size "
                f"{head.config.target_hidden_size} and vocabulary {head.config.vocab_size}; "
                f"this one has {text.hidden_size} and {text.vocab_size}"
            )
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
    return Eagle3Head(shape)


def _initialise(draft: Eagle3Head, target: OnlineTarget, seed: int) -> None:
    """Random weights from the seed; the output layer starts as the target's own."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in draft.parameters():
        if parameter.dim() > 1:
            std = parameter.shape[1] ** -0.5
            parameter.data.normal_(0.0, std, generator=generator)
    draft.lm_head.weight.data.copy_(target.output_rows.float())


def _vocabulary(
    config: TrainConfig,
    draft: Eagle3Head,
    examples: list[Example],
    target: OnlineTarget,
    think: ThinkFormat,
) -> float:
    """Choose the draft's vocabulary, or keep that of the head we start from; its coverage."""
    if not draft.config.maps_vocabulary:
        return 1.0
    size = draft.config.draft_vocab_size
    if config.draft.init_from is None:
        ends = draft.config.eos_token_id
        always = [*think.end_ids, *([ends] if isinstance(ends, int) else ends or [])]
        chosen = choose_vocabulary(examples, draft.config.vocab_size, size, always)
        draft.set_vocabulary(chosen.target_ids)
    ids = draft.to_target_ids(torch.arange(size))
    target.use_vocabulary(ids)
    kept = draft.t2d.cpu()
    held = sum(int(kept[e.ids[e.is_target]].sum()) for e in examples)
    coverage = held / max(1, sum(int(e.is_target.sum()) for e in examples))
    log.info("draft vocabulary: %d tokens cover %.2f %% of the targets", size, 100 * coverage)
    return coverage


def _source(
    config: TrainConfig,
    target: OnlineTarget,
    examples: list[Example],
    device: torch.device,
    progress: bool,
) -> OnlineTarget | KeptFeatures:
    mode = config.features.mode
    if mode == "online":
        return target
    if mode == "stored":
        from training.stored import open_stored

        assert config.features.folder is not None
        return open_stored(target, Path(config.features.folder), examples)
    return keep_in_memory(
        target, examples, limit_gib=config.features.memory_gib, device=device, progress=progress
    )
