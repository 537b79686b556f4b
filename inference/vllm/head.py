"""The signal head of a running server: found in the draft's folder, checked against the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inference.vllm.mtp_features import MtpFeatures
from inference.vllm.settings import WorkerSettings, server_policy, split_settings
from specexit.checkpoint import (
    FOLDER,
    HeadMetadata,
    check_target,
    has_signals,
    load_metadata,
    load_signal_head,
    target_facts,
)
from specexit.errors import CheckpointError, ConfigError
from specexit.heads.signal import SignalHead
from specexit.policy import ExitPolicy
from specexit.split import StepSplitter
from specexit.think import ThinkFormat

METHODS = ("eagle3", "mtp")


@dataclass(frozen=True)
class LoadedHead:
    """All that a worker needs to know about its head.

    `is_blank [V + 1] bool` (on the CPU) marks the ids whose text is only white space;
    `grammar_thinks` says that a structured output's grammar holds from the first token on, the
    thinking included.
    """

    head: SignalHead
    metadata: HeadMetadata
    settings: WorkerSettings
    policy: ExitPolicy
    think: ThinkFormat
    splitter: StepSplitter
    is_blank: Tensor
    grammar_thinks: bool
    encode: Callable[[str], list[int]]


def head_folder(vllm_config: Any) -> Path:
    """Folder of the draft model that `--speculative-config` names (fetched if it is a hub name).

    Raises:
        ConfigError: there is no draft model.
    """
    speculative = vllm_config.speculative_config
    draft = getattr(speculative, "draft_model_config", None)
    if speculative is None or draft is None:
        raise ConfigError(
            "specexit: SpecExitWorker needs a draft head; give --speculative-config "
            '\'{"method": "eagle3", "model": "HEAD", "num_speculative_tokens": 3}\''
        )
    if speculative.method not in METHODS:
        raise ConfigError(
            f"specexit: speculative method {speculative.method!r} carries no signals here; "
            f"use {' or '.join(METHODS)}"
        )
    settings, _ = split_settings(vllm_config.additional_config)
    folder = Path(settings.head or draft.model)
    if folder.is_dir():
        return folder
    if settings.head is not None:
        raise ConfigError(f"additional_config.specexit.head: {settings.head!r} is not a folder")
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(draft.model, revision=draft.revision, allow_patterns=[f"{FOLDER}/*"])
    )


def policy_of(vllm_config: Any) -> ExitPolicy:
    """The server's policy, without loading any weights."""
    return server_policy(
        vllm_config.additional_config, load_metadata(head_folder(vllm_config)).policy
    )


def load(vllm_config: Any, device: torch.device) -> LoadedHead:
    """Read and check the head, and merge the policies.

    Raises:
        CheckpointError: the folder has no signals, or they belong to another target.
        ConfigError: a setting is wrong.
    """
    folder = head_folder(vllm_config)
    if not has_signals(folder):
        raise CheckpointError(
            f"head: {folder} has no {FOLDER}/specexit.json; it is a plain draft head. Train "
            "signals for it (`specexit train`), or serve it without "
            "--worker-cls inference.vllm.SpecExitWorker"
        )
    head, metadata = load_signal_head(folder)
    method = vllm_config.speculative_config.method
    if metadata.method != method:
        raise CheckpointError(
            f"head: {folder} has signals for method {metadata.method}, the speculative method "
            f"is {method}; train them for the draft that is served"
        )
    settings, _ = split_settings(vllm_config.additional_config)
    model = vllm_config.model_config
    check_target(
        metadata, target_facts(model.model, model.hf_config), weights=settings.check_target
    )
    _check_features(metadata, vllm_config)
    tokenizer = _tokenizer(model)
    vocab = model.get_vocab_size()
    texts = tokenizer.batch_decode([[i] for i in range(min(vocab, len(tokenizer)))])
    # one more id than the vocabulary has: it stands for "no token" and is never a boundary
    splitter = StepSplitter.from_texts(texts, vocab_size=max(vocab, len(tokenizer)) + 1)
    blank = torch.zeros(splitter.vocab_size, dtype=torch.bool)
    blank[[i for i, text in enumerate(texts) if text and not text.strip()]] = True
    think = metadata.think
    if settings.think_start is not None:
        think = ThinkFormat.from_tokenizer(tokenizer, settings.think_start, settings.think_end)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    grammar = vllm_config.structured_outputs_config
    return LoadedHead(
        head=head.to(device),
        metadata=metadata,
        settings=settings,
        policy=server_policy(vllm_config.additional_config, metadata.policy),
        think=think,
        splitter=splitter,
        is_blank=blank,
        grammar_thinks=not grammar.reasoning_parser or grammar.enable_in_reasoning,
        encode=encode,
    )


def mtp_reader(loaded: LoadedHead, draft: Any) -> MtpFeatures | None:
    """Reads an MTP draft's features; None where the head is for another kind of draft.

    Raises:
        ConfigError: the draft is of no known family.
        CheckpointError: the head reads features of another width.
    """
    if loaded.metadata.method != "mtp":
        return None
    reader = MtpFeatures(draft)
    reader.check_width(loaded.metadata.in_features, loaded.metadata.target.hidden_size)
    return reader


def feature_norm(draft: Any) -> Callable[[Tensor], Tensor] | None:
    """What the draft does to its features before `fc`, None if nothing (see `llama_eagle3`).

    The signal head reads what `fc` reads, so it needs the same normalisation.
    """
    inner = getattr(draft, "model", draft)
    before = inner.input_norm if getattr(inner, "norm_before_fc", False) else None
    chunked = getattr(inner, "fc_norm", None)
    if before is None and chunked is None:
        return None

    def normalise(features: Tensor) -> Tensor:
        if before is not None:
            features = before(features)
        if chunked is not None:
            chunks = features.chunk(len(chunked), -1)
            features = torch.cat([n(c) for n, c in zip(chunked, chunks, strict=True)], -1)
        return features

    return normalise


def _check_features(metadata: HeadMetadata, vllm_config: Any) -> None:
    config = vllm_config.speculative_config.draft_model_config.hf_config
    found = tuple(getattr(config, "eagle_aux_hidden_state_layer_ids", None) or ())
    if metadata.aux_layer_ids and found and found != metadata.aux_layer_ids:
        raise CheckpointError(
            f"head: config.json has eagle_aux_hidden_state_layer_ids {list(found)}, the signals "
            f"were trained on {list(metadata.aux_layer_ids)}; export the head again"
        )


def _tokenizer(model_config: Any) -> Any:
    from vllm.tokenizers import cached_tokenizer_from_config

    tokenizer = cached_tokenizer_from_config(model_config)
    if tokenizer is None:
        raise ConfigError(
            "specexit: the worker finds paragraph ends with the tokenizer; "
            "start without --skip-tokenizer-init"
        )
    return tokenizer
