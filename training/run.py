"""A whole training run: prepare, joint training, refinement of the signals, export."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from specexit.heads.signal import Kind
from training.config import TrainConfig
from training.draft import thinking_inputs
from training.engine import check_launch, make_accelerator
from training.export import export_head
from training.loop import Trainer
from training.memory import KeptFeatures, compute_features
from training.refine import ThinkingFeatures, new_signals, refine_signals
from training.setup import Run, prepare
from training.sharding import whole
from training.signals import StandardisedSignals

log = logging.getLogger(__name__)


def train(
    config: TrainConfig, out: Path, *, command: str, resume: bool = False, progress: bool = True
) -> list[Path]:
    """Train as configured and write the heads.

    Args:
        out: HEAD; further signal kinds go to `HEAD-<kind>` beside it.
        resume: go on from the newest checkpoint in `out`, where there is one.

    Returns:
        Folders of the heads that were written (by the main process).
    """
    accelerator = make_accelerator(config)
    engine = check_launch(config, accelerator)
    if accelerator.num_processes == 1:
        torch.use_deterministic_algorithms(True, warn_only=True)
    shown = progress and accelerator.is_main_process
    run = prepare(config, accelerator.device, progress=shown)
    if config.tracker != "none":
        accelerator.init_trackers("specexit", config=config.model_dump(mode="json"))
    kinds = config.signals.heads
    items = thinking_features(run, progress=shown) if kinds else []
    signals = None
    if kinds:
        torch.manual_seed(config.seed)
        signals = new_signals(kinds[0], items, config.signals).to(accelerator.device)
    if not config.draft.freeze:
        trainer = Trainer(run, signals, accelerator, engine, out)
        if resume:
            from training.resume import load_newest

            load_newest(trainer)
        trainer.train(progress=shown)
        _gather(trainer)
        reads_trained = run.draft.has_input_norms or config.signals.source == "draft"
        if kinds and reads_trained and accelerator.is_main_process:
            items = thinking_features(run, progress=shown)
    heads: dict[Kind, StandardisedSignals | None] = {}
    if accelerator.is_main_process:
        heads = _refine(config, kinds, signals, items, out, shown)
    accelerator.wait_for_everyone()
    written = []
    if accelerator.is_main_process:
        for number, (kind, head) in enumerate(heads.items()):
            folder = out if number == 0 else out.with_name(f"{out.name}-{kind}")
            export_head(folder, run, head, command=command)
            written.append(folder)
        if not kinds:
            export_head(out, run, None, command=command)
            written.append(out)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return written


def thinking_features(run: Run, *, progress: bool = True) -> list[ThinkingFeatures]:
    """What signal heads read of all thinkings of the training split now, on the CPU."""
    indices = [i for i, e in enumerate(run.examples) if e.thinking is not None]
    if isinstance(run.source, KeptFeatures):
        read = run.source.of
    else:
        kept = compute_features(
            run.target,
            [run.examples[i] for i in indices],
            device=run.target.embedding.device,
            progress=progress,
        )
        position = {i: n for n, i in enumerate(indices)}

        def read(index: int) -> Any:
            return kept[position[index]]

    items = []
    for i in indices:
        thinking = run.examples[i].thinking
        assert thinking is not None
        example, draft = run.examples[i], run.draft
        states = draft.select(*read(i)).to(draft.fc.weight.device)
        with torch.no_grad():
            picked = thinking_inputs(
                draft, states, example.ids, thinking, run.config.signals.source
            )
        items.append(ThinkingFeatures(picked.cpu(), thinking))
    return items


def _gather(trainer: Trainer) -> None:
    """ZeRO-3 and FSDP2 shard the parameters: bring them together before anything reads them."""
    if trainer.engine == "zero3":
        state = trainer.accelerator.get_state_dict(trainer.wrapped)
    elif trainer.engine == "fsdp2":
        state = whole(trainer.model.state_dict())
    else:
        return
    if trainer.accelerator.is_main_process:
        from training.resume import load_gathered

        load_gathered(trainer, state)


def _refine(
    config: TrainConfig,
    kinds: tuple[Kind, ...],
    signals: StandardisedSignals | None,
    items: list[ThinkingFeatures],
    out: Path,
    progress: bool,
) -> dict[Kind, StandardisedSignals | None]:
    heads: dict[Kind, StandardisedSignals | None] = {}
    for number, kind in enumerate(kinds):
        start = signals if number == 0 else None
        if config.signals.refine_epochs == 0 and start is not None:
            heads[kind] = start.cpu().eval()
            continue
        heads[kind] = refine_signals(
            start.cpu() if start is not None else None,
            kind,
            items,
            config.signals,
            config.balance,
            seed=config.seed + 1 + number,
            clip=config.optim.clip,
            progress=progress,
        )
    return heads
