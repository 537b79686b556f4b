"""What the measurements share: the built-in reasoner, its questions, and a head for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from specexit.checkpoint import HeadMetadata, has_signals, save_signal_head, target_facts
from specexit.errors import CheckpointError
from specexit.heads.eagle3 import Eagle3Head
from specexit.heads.eagle3_config import Eagle3Config
from specexit.heads.signal import SignalHead
from specexit.think import ThinkFormat

# looks at every token but never exits, whatever signals the head's own policy reads
NEVER = {"signals": ["confidence"], "thresholds": {"confidence": 1.0}}


def default_target() -> str:
    """Folder of the built-in reasoner."""
    from specexit.tiny import model_path

    return str(model_path())


def find_head(folder: str | None, target: str, scratch: Path, kind: str = "memory") -> Path:
    """The given head, or a random one, written to `scratch` (its drafts are rarely accepted).

    Raises:
        CheckpointError: the given folder has no signals.
    """
    if folder is not None:
        if not has_signals(folder):
            raise CheckpointError(f"--head: {folder} has no specexit/specexit.json")
        return Path(folder)
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(target)
    think = ThinkFormat.from_tokenizer(AutoTokenizer.from_pretrained(target))
    torch.manual_seed(0)
    draft = Eagle3Config.for_target(config, dtype="float32")
    Eagle3Head(draft).save(scratch, dtype=torch.float32)
    head = SignalHead(kind, draft.in_features)  # type: ignore[arg-type]
    metadata = HeadMetadata(
        kind=head.kind,
        rows=head.rows,
        in_features=draft.in_features,
        aux_layer_ids=draft.aux_layer_ids,
        think_start_ids=think.start_ids,
        think_end_ids=think.end_ids,
        target=target_facts(target, config),
    )
    save_signal_head(scratch, head, metadata)
    return scratch


def tiny_prompts(tokenizer: Any, count: int, seed: int) -> list[dict[str, list[int]]]:
    """Prompts of the built-in questions, as token ids."""
    from specexit.tiny import questions

    prompts = []
    for item in questions("heldout", count, seed=seed):
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": item["question"]}],
            add_generation_prompt=True,
            tokenize=False,
        )
        prompts.append({"prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)})
    return prompts


def runner_of(llm: Any) -> Any:
    """The model runner of an in-process engine."""
    worker = llm.llm_engine.model_executor.driver_worker
    return getattr(worker, "worker", worker).model_runner
