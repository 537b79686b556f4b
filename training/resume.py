"""Checkpoints to go on from: written whole or not at all, the newest few kept.

    OUT/checkpoints/step-000200/trainer.json            step, engine, world size, config, best
                                model.safetensors       parameters (not with ZeRO)
                                optimiser.safetensors   AdamW's moments (not with ZeRO)
                                average.safetensors     moving average, where there is one
                                signals*.safetensors    signal head, its moments, balancer
                                engine/                 DeepSpeed's own shards (ZeRO)
    OUT/checkpoints/best.json, best-000150/             the best one by `checkpoint.best`

Data order, dropout and learning rate are functions of the seed and the step, so these are enough
to go on bit by bit.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specexit.errors import CheckpointError
from specexit.files import atomic_path, read_json, write_json
from specexit.heads.eagle3 import Eagle3Head
from specexit.heads.mtp import MtpHead
from training.draft import bind_target
from training.sharding import sharded_like, whole

if TYPE_CHECKING:
    from training.loop import Trainer

log = logging.getLogger(__name__)


def save_checkpoint(trainer: Trainer) -> Path:
    """Write the current state; older checkpoints beyond `keep_last` are removed afterwards.

    Raises:
        OSError: the disk is full; the older checkpoints stay.
    """
    final = _write(trainer, f"step-{trainer.step:06d}")
    if trainer.accelerator.is_main_process:
        for old in checkpoints(trainer.out)[: -trainer.config.checkpoint.keep_last]:
            shutil.rmtree(old)
    trainer.accelerator.wait_for_everyone()
    return final


def save_best(trainer: Trainer) -> Path:
    """Write the current state as the best one. `best.json` names it, so the one before counts
    until the new one is whole.

    Raises:
        OSError: the disk is full; the one before stays.
    """
    final = _write(trainer, f"best-{trainer.step:06d}")
    if trainer.accelerator.is_main_process:
        write_json(final.parent / "best.json", {"folder": final.name} | (trainer.best or {}))
        for old in final.parent.glob("best-*"):
            if old != final:
                shutil.rmtree(old)
    trainer.accelerator.wait_for_everyone()
    return final


def load_best(trainer: Trainer) -> None:
    """Put the best weights into the trainer."""
    folder = trainer.out / "checkpoints"
    _restore(trainer, folder / read_json(folder / "best.json")["folder"])


def _write(trainer: Trainer, name: str) -> Path:
    """A whole checkpoint folder, or none."""
    folder = trainer.out / "checkpoints"
    final = folder / name
    partial = folder / f".{final.name}.partial"
    accelerator = trainer.accelerator
    if accelerator.is_main_process:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    accelerator.wait_for_everyone()
    own: dict[str, dict[str, Tensor]] = {}
    if trainer.engine.startswith("zero"):
        trainer.wrapped.save_checkpoint(str(partial), tag="engine")
    else:  # on all processes, which hold parts of it under FSDP2
        own["model"] = whole(trainer.model.state_dict())
        own["optimiser"] = whole(_moments(trainer.optimiser))
    if accelerator.is_main_process:
        try:
            for name, tensors in own.items():
                _save(partial / f"{name}.safetensors", tensors)
            if trainer.signals is not None:
                part = trainer.signals
                _save(partial / "signals.safetensors", dict(part.signals.state_dict()))
                _save(partial / "signals-optimiser.safetensors", _moments(part.optimiser))
                _save(partial / "balancer.safetensors", dict(part.balancer.state_dict()))
            if trainer.average is not None:
                _save(partial / "average.safetensors", trainer.average.state_dict())
            write_json(partial / "trainer.json", _facts(trainer))
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    accelerator.wait_for_everyone()
    return final


def checkpoints(out: Path) -> list[Path]:
    """Whole checkpoints of a run, oldest first."""
    return sorted(p for p in (out / "checkpoints").glob("step-*") if (p / "trainer.json").is_file())


def load_newest(trainer: Trainer) -> bool:
    """Continue from the newest checkpoint; False where there is none.

    Raises:
        CheckpointError: it belongs to a run with other settings or another launch.
    """
    found = checkpoints(trainer.out)
    if not found:
        log.info("no checkpoint in %s: starting afresh", trainer.out)
        return False
    folder = found[-1]
    facts = read_json(folder / "trainer.json")
    _check(folder, facts, _facts(trainer))
    _restore(trainer, folder)
    trainer.step, trainer.best = facts["step"], facts["best"]
    log.info("going on from step %d (%s)", trainer.step, folder)
    return True


def _restore(trainer: Trainer, folder: Path) -> None:
    """Weights, moments and balance of a checkpoint."""
    if trainer.engine.startswith("zero"):
        trainer.wrapped.load_checkpoint(str(folder), tag="engine")
    else:
        tensors, current = load_file(str(folder / "model.safetensors")), trainer.model.state_dict()
        trainer.model.load_state_dict({n: sharded_like(t, current[n]) for n, t in tensors.items()})
        _load_moments(trainer.optimiser, load_file(str(folder / "optimiser.safetensors")))
    if trainer.signals is not None:
        part = trainer.signals
        part.signals.load_state_dict(load_file(str(folder / "signals.safetensors")))
        _load_moments(part.optimiser, load_file(str(folder / "signals-optimiser.safetensors")))
        part.balancer.load_state_dict(load_file(str(folder / "balancer.safetensors")))
    if trainer.average is not None:
        trainer.average.load_state_dict(load_file(str(folder / "average.safetensors")))


def load_gathered(trainer: Trainer, state: dict[str, Tensor]) -> None:
    """Put the full parameters of ZeRO-3 or FSDP2 into a plain draft for export."""
    old = trainer.run.draft
    draft = Eagle3Head(old.config) if isinstance(old, Eagle3Head) else MtpHead(old.config)
    draft.load_state_dict({n.removeprefix("draft."): t.detach().cpu() for n, t in state.items()})
    trainer.run.draft = bind_target(draft.to(trainer.accelerator.device), trainer.run.target)


def _facts(trainer: Trainer) -> dict[str, Any]:
    config = trainer.config.model_dump(mode="json")
    for free in ("checkpoint", "tracker", "log_every"):  # may differ without changing a number
        config.pop(free)
    return {
        "step": trainer.step,
        "best": trainer.best,
        "engine": trainer.engine,
        "world": trainer.accelerator.num_processes,
        "config": config,
        "data_hash": trainer.run.data_hash,
    }


def _check(folder: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    different = [n for n in ("engine", "world", "data_hash") if found[n] != wanted[n]]
    for section, value in wanted["config"].items():
        if found["config"].get(section) != value:
            different.append(f"config.{section}")
    if different:
        raise CheckpointError(
            f"--resume: {folder} was written with other {', '.join(different)}; resume with the "
            "same settings and launch, or choose another --out"
        )


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    kept = {n: t.detach().cpu().contiguous() for n, t in tensors.items()}
    with atomic_path(path) as temporary:
        save_file(kept, str(temporary))


def _moments(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """AdamW's state by parameter number: `<n>.<name>`."""
    state = optimiser.state_dict()["state"]
    return {
        f"{number}.{name}": torch.as_tensor(value).clone()
        for number, entries in state.items()
        for name, value in entries.items()
    }


def _load_moments(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    entries: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        entries.setdefault(int(number), {})[name] = sharded_like(value, parameters[int(number)])
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": entries, "param_groups": groups})
