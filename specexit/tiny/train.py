"""Train the built-in reasoner from scratch: a fixed number of steps, seeded, on a CPU.

Everything is float32 (CPUs without bfloat16 arithmetic emulate it ten times slower). The stream of
batches follows from the seed alone, so a resumed run sees the batches it would have seen.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from specexit.errors import ConfigError
from specexit.files import atomic_path
from specexit.provenance import write_provenance
from specexit.tiny.batches import IGNORED, Batch, batches
from specexit.tiny.data import problems
from specexit.tiny.muon import BatchedMuon
from specexit.tiny.settings import TrainSettings
from specexit.tiny.tokenizer import VOCABULARY, train_tokenizer

log = logging.getLogger(__name__)

_TOKENIZER_PROBLEMS = 3000
_STATE = "training_state.pt"


def model_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=8,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
    )


def make_tokenizer() -> PreTrainedTokenizerFast:
    """The shipped tokenizer: merges learnt from the first training problems of seed 0."""
    texts = []
    for problem, trace in problems("train", _TOKENIZER_PROBLEMS, seed=0):
        texts += [
            f"user\n{problem.question}",
            f"\n{trace.thinking}\n",
            f"\n\n{trace.answer_text}",
            "assistant\n",
        ]
    return train_tokenizer(texts)


class Trainer:
    """Model, optimizers and the step; what a resume needs is all in `state`."""

    def __init__(self, settings: TrainSettings) -> None:
        torch.set_num_threads(settings.threads)
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.tokenizer = make_tokenizer()
        self.model = Qwen3ForCausalLM(model_config(self.tokenizer)).float().train()
        matrices: list[torch.nn.Parameter] = []
        rest: list[torch.nn.Parameter] = []
        for name, parameter in self.model.named_parameters():
            is_matrix = parameter.ndim == 2 and "embed" not in name
            (matrices if is_matrix else rest).append(parameter)
        self.optimizers: list[torch.optim.Optimizer] = [
            BatchedMuon(matrices, lr=settings.learning_rate),
            torch.optim.AdamW(rest, lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.step_index = 0
        self.tokens_seen = 0
        self.seconds = 0.0
        self.mean_loss = 0.0

    def run(self, checkpoint: Path, *, quiet: bool = False) -> None:
        """Take the steps that are left, writing `checkpoint` every so many."""
        settings, before, began = self.settings, self.seconds, time.monotonic()
        stream = batches(
            self.tokenizer, seed=settings.seed, steps=settings.steps, tokens=settings.tokens
        )
        done = self.step_index
        with tqdm(
            total=settings.steps, initial=done, disable=quiet, unit="step", mininterval=5
        ) as bar:
            for batch in itertools.islice(stream, done, None):
                self.step(batch)
                self.seconds = before + time.monotonic() - began
                rate = self.tokens_seen / self.seconds
                bar.set_postfix_str(
                    f"loss {self.mean_loss:.4f}, {rate:.0f} tokens/s", refresh=False
                )
                bar.update()
                if self.step_index % settings.checkpoint_every == 0:
                    with atomic_path(checkpoint) as temporary:
                        torch.save(self.state(), temporary)

    def step(self, batch: Batch) -> None:
        rate = self.settings.rate(self.step_index)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
        loss = self.loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        weight = 0.02 if self.step_index else 1.0
        self.mean_loss += weight * (loss.item() - self.mean_loss)
        self.step_index += 1
        self.tokens_seen += int((batch.ids != self.tokenizer.pad_token_id).sum())

    def loss(self, batch: Batch) -> torch.Tensor:
        """Cross-entropy of the thinking and the answers; the prompt has no loss."""
        hidden = self.model.model(
            input_ids=batch.ids,
            attention_mask=batch.mask,
            position_ids=batch.positions,
            use_cache=False,
        )[0]
        targets = batch.labels[:, 1:]
        kept = targets != IGNORED
        return F.cross_entropy(self.model.lm_head(hidden[:, :-1][kept]), targets[kept])

    def state(self) -> dict[str, Any]:
        return {
            "settings": asdict(self.settings),
            "step": self.step_index,
            "tokens": self.tokens_seen,
            "seconds": self.seconds,
            "mean_loss": self.mean_loss,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def load(self, path: Path) -> None:
        """Continue from `state`; raises ConfigError where the settings differ."""
        state = torch.load(path, weights_only=True)
        for name, value in asdict(self.settings).items():
            if state["settings"][name] != value:
                raise ConfigError(
                    f"{name}: {value} differs from {state['settings'][name]} of the run in "
                    f"{path.parent}; resume with the same settings or take another --out"
                )
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step_index, self.tokens_seen = state["step"], state["tokens"]
        self.seconds, self.mean_loss = state["seconds"], state["mean_loss"]


def train(
    out: Path, settings: TrainSettings | None = None, *, resume: bool = False, quiet: bool = False
) -> dict[str, Any]:
    """Train and write a model folder to `out`; returns tokens, seconds and the last mean loss.

    An interrupted run leaves checkpoints in `out` + `.part`, each replaced atomically; with
    `resume` it goes on from there and ends in the same weights as a run in one piece.

    Raises:
        ConfigError: `out` is not empty, or holds a run that `resume` does not fit.
    """
    settings = settings or TrainSettings()
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"--out {out}: the folder is not empty; take another or remove it")
    part = out.with_name(out.name + ".part")
    checkpoint = part / _STATE
    if checkpoint.exists() and not resume:
        raise ConfigError(f"--out {out}: {part} holds an unfinished run; --resume it or remove it")
    part.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(settings)
    if checkpoint.exists():
        trainer.load(checkpoint)
        log.info("resumed at step %d of %d", trainer.step_index, settings.steps)
    trainer.run(checkpoint, quiet=quiet)
    facts = {
        "tokens": trainer.tokens_seen,
        "seconds": round(trainer.seconds, 1),
        "loss": round(trainer.mean_loss, 4),
    }
    finished = part / "model"
    save_model(trainer, finished)
    write_provenance(
        finished,
        command=f"specexit tiny train --out DIR{_options(settings)}",
        seed=settings.seed,
        config=asdict(settings),
        training=facts,
    )
    if out.exists():
        out.rmdir()
    os.replace(finished, out)
    shutil.rmtree(part)
    return facts


def save_model(trainer: Trainer, folder: Path) -> None:
    """Weights in bfloat16 with configuration, generation settings and tokenizer."""
    model = Qwen3ForCausalLM(trainer.model.config)
    model.load_state_dict(trainer.model.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder)
    trainer.tokenizer.save_pretrained(folder)


def _options(settings: TrainSettings) -> str:
    """The options of the command that differ from its defaults."""
    names = ("steps", "seed", "threads")
    changed = [n for n in names if getattr(settings, n) != getattr(TrainSettings(), n)]
    return "".join(f" --{name} {getattr(settings, name)}" for name in changed)
