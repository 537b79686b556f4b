"""A tiny random target whose greedy text depends on its context, with a draft and signal heads.

Its outputs are noise with many blank lines and rare think ends, which is what exactness tests
want: any wrong row, state or KV entry shows in the next tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from specexit.checkpoint import HeadMetadata, save_signal_head, target_facts
from specexit.heads.eagle3 import Eagle3Head
from specexit.heads.eagle3_config import Eagle3Config
from specexit.heads.signal import SignalHead
from specexit.policy import ExitPolicy

CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789+-*/=().,:?!{}[]\"'_"
SPECIAL = ["<pad>", "<eos>", "<think>", "</think>", ".\n\n", "\n", " ", "Wait", "\n\n"]
VOCABULARY = [*SPECIAL, *CHARACTERS]
EOS, START, END, SPLIT, NEWLINE, SPACE, BLANK = 1, 2, 3, 4, 5, 6, 8
H, LAYERS, AUX = 64, 6, (1, 3, 5)


def ends_paragraph(ids: Sequence[int], i: int) -> bool:
    """Whether token i of a text of this vocabulary ends a paragraph."""
    if ids[i] in (SPLIT, BLANK):
        return True
    return i > 0 and ids[i] == NEWLINE and ids[i - 1] in (SPLIT, BLANK, NEWLINE)


def make_tokenizer(folder: Path) -> None:
    """One id a character, think tags and blank lines as single ids."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({t: i for i, t in enumerate(VOCABULARY)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"\.\n\n|\n\n|Wait|[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    core.add_special_tokens([AddedToken(t) for t in SPECIAL[:2]])
    core.add_tokens([AddedToken(t, normalized=False) for t in SPECIAL[2:4]])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<eos>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}<think>{% endif %}"
    )
    tokenizer.save_pretrained(str(folder))


def make_target(
    folder: Path, seed: int = 2, end_scale: float = 0.3, start_scale: float = 0.0
) -> Path:
    """Write the target; the scales say how often it closes and opens a thinking by itself."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(VOCABULARY),
        hidden_size=H,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        eos_token_id=EOS,
        pad_token_id=0,
        initializer_range=0.3,
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config).float()
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(0, 1)
        rows = model.lm_head.weight
        rows.normal_(0, 0.4)
        rows[[0, EOS]] = 0
        rows[START] *= start_scale
        rows[END] *= end_scale
        rows[SPLIT] *= 1.5
        rows[len(VOCABULARY) - 6 :] = 0
    model.save_pretrained(str(folder))
    make_tokenizer(folder)
    return folder


def make_head(
    folder: Path,
    target: Path,
    kind: str = "memory",
    *,
    policy: ExitPolicy | None = None,
    seed: int = 0,
    think_end_ids: tuple[int, ...] = (END,),
    think_start_ids: tuple[int, ...] = (START,),
    **options: Any,
) -> Path:
    """Write a random draft with random signals of the given kind."""
    from transformers import AutoConfig

    target_config = AutoConfig.from_pretrained(str(target))
    torch.manual_seed(seed)
    draft = Eagle3Head(
        Eagle3Config.for_target(target_config, aux_layer_ids=AUX, dtype="float32", **options)
    )
    draft.save(folder, dtype=torch.float32)
    head = SignalHead(kind, H * len(AUX), rows=8, readout_size=16)  # type: ignore[arg-type]
    with torch.no_grad():
        head.projection.weight.mul_(0.05)  # keeps exp(s2) of a linear head finite
    metadata = HeadMetadata(
        kind=head.kind,
        rows=head.rows,
        readout_size=16,
        in_features=H * len(AUX),
        aux_layer_ids=AUX,
        think_start_ids=think_start_ids,
        think_end_ids=think_end_ids,
        policy=policy or ExitPolicy(),
        target=target_facts(target),
    )
    save_signal_head(folder, head, metadata)
    return folder


def edit_metadata(folder: Path, **changes: Any) -> None:
    """Change entries of a head's `specexit.json`."""
    path = folder / "specexit" / "specexit.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
