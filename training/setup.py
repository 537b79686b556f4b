"""Everything that a run needs before its first step: data, target, draft, signal head."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specexit.checkpoint import TargetFacts, target_facts
from specexit.dataset import data_hash, read_traces
from specexit.errors import ConfigError
from specexit.heads.draft import Draft
from specexit.heads.eagle3 import Eagle3Head
from specexit.target_config import read_target_config
from specexit.think import ThinkFormat
from training.config import TrainConfig
from training.draft import bind_target, make_draft
from training.examples import Example, make_examples
from training.features import OnlineTarget, resolve_target
from training.memory import KeptFeatures, keep_in_memory
from training.vocabulary import choose_vocabulary

log = logging.getLogger(__name__)


@dataclass
class Run:
    """What `prepare` made.

    Attributes:
        examples: of the training split, cut to the row length; the held-out ones come last.
        held_out: number of the held-out ones.
        source: states of batches.
        facts: of the target, for the checkpoint.
    """

    config: TrainConfig
    target_path: str
    target: OnlineTarget
    facts: TargetFacts
    think: ThinkFormat
    examples: list[Example]
    held_out: int
    draft: Draft
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
    examples, held_out = hold_out(examples, config)
    target_config = read_target_config(path)
    text = target_config.get_text_config()
    check_ids(examples, text.vocab_size)
    draft = make_draft(config, path, target_config)
    dtype = _feature_dtype(config, device)
    target = OnlineTarget(path, draft.config.aux_layer_ids, dtype=dtype, device=device)
    facts = target_facts(path, target_config)
    coverage = _vocabulary(config, draft, examples, target, think)
    if isinstance(draft, Eagle3Head):
        if config.draft.init_from is None:
            draft.lm_head.weight.data.copy_(target.output_rows.float())
        if draft.config.maps_vocabulary:
            kept = draft.t2d.cpu()
            examples = [replace(e, is_target=e.is_target & kept[e.ids]) for e in examples]
    bind_target(draft.to(device), target)
    source = _source(config, target, examples, device, progress)
    return Run(
        config=config,
        target_path=path,
        target=target,
        facts=facts,
        think=think,
        examples=examples,
        held_out=held_out,
        draft=draft,
        source=source,
        data_hash=examples_hash,
        coverage=coverage,
    )


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


def hold_out(examples: list[Example], config: TrainConfig) -> tuple[list[Example], int]:
    """Move the validation traces to the end; their number of sequences.

    Raises:
        ConfigError: nothing would be left to train on.
    """
    if not config.validation.every:
        return examples, 0
    ids = sorted({e.id for e in examples})
    wanted = config.validation.traces
    if wanted >= len(ids):
        raise ConfigError(
            f"validation.traces: {wanted} of the {len(ids)} traces in split train leave none to "
            "train on"
        )
    held = set(random.Random(config.seed).sample(ids, wanted))
    count = sum(e.id in held for e in examples)
    return sorted(examples, key=lambda e: e.id in held), count


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


def _feature_dtype(config: TrainConfig, device: torch.device) -> torch.dtype | None:
    if config.features.dtype != "auto":
        return getattr(torch, config.features.dtype)
    return torch.float32 if device.type == "cpu" else None


def _vocabulary(
    config: TrainConfig,
    draft: Draft,
    examples: list[Example],
    target: OnlineTarget,
    think: ThinkFormat,
) -> float:
    """Choose the draft's vocabulary, or keep that of the head we start from; its coverage."""
    if not isinstance(draft, Eagle3Head) or not draft.config.maps_vocabulary:
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
