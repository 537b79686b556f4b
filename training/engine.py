"""How the run was launched (one process, DDP, DeepSpeed, FSDP2), checked before anything loads."""

from __future__ import annotations

import os
from typing import Any

import torch

from specexit.errors import ConfigError
from training.config import BatchSettings, TrainConfig

_LAUNCH = {
    "single": "specexit train --config FILE --out DIR",
    "ddp": "accelerate launch --config_file configs/distributed/ddp.yaml -m training ...",
    "zero1": "accelerate launch --config_file configs/distributed/zero1.yaml -m training ...",
    "zero2": "accelerate launch --config_file configs/distributed/zero2.yaml -m training ...",
    "zero3": "accelerate launch --config_file configs/distributed/zero3.yaml -m training ...",
    "fsdp2": "accelerate launch --config_file configs/distributed/fsdp2.yaml -m training ...",
}
SHARDED = ("zero1", "zero2", "zero3", "fsdp2")
"""Engines whose gradients are parts of different processes."""


def make_accelerator(config: TrainConfig) -> Any:
    """An `Accelerator` for whatever launched this process; gloo where there is no GPU.

    Raises:
        ConfigError: FSDP2 without a GPU.
    """
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs

    has_gpu = torch.cuda.is_available()
    asked_fsdp = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    if not has_gpu and (asked_fsdp or config.engine == "fsdp2"):
        raise ConfigError(
            "engine: fsdp2 needs GPUs, and this machine shows none; accelerate would silently run "
            f"DDP instead. On a CPU launch with: {_LAUNCH['ddp']} or: {_LAUNCH['zero3']}"
        )
    if not has_gpu and os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        _keep_deepspeed_from_compiling()
    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
    handlers = [] if has_gpu or not launched else [InitProcessGroupKwargs(backend="gloo")]
    accelerator = Accelerator(
        kwargs_handlers=handlers,
        mixed_precision="no",  # parameters stay fp32; the model autocasts its own compute
        gradient_accumulation_steps=config.batch.accumulation,
        log_with="wandb" if config.tracker == "wandb" else None,
    )
    if getattr(accelerator.state, "deepspeed_plugin", None) is not None:
        # accelerate tells transformers about ZeRO-3 whatever zero3_init_flag says; transformers
        # would then shard the frozen target, whose embedding and head we read directly
        from transformers.integrations import unset_hf_deepspeed_config

        unset_hf_deepspeed_config()
    return accelerator


def _keep_deepspeed_from_compiling() -> None:
    """DeepSpeed would compile a shared-memory all-reduce at first use (about two minutes); gloo
    does the same work. The table is what `deepspeed.comm.torch.build_shm_op` asks."""
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def engine_name(accelerator: Any) -> str:
    """single, ddp, zero1, zero2, zero3, fsdp2 or fsdp1."""
    kind = str(accelerator.distributed_type).rsplit(".", 1)[-1]
    if kind == "DEEPSPEED":
        return f"zero{accelerator.state.deepspeed_plugin.zero_stage}"
    if kind == "NO":
        return "single"
    if kind == "FSDP":
        return f"fsdp{accelerator.state.fsdp_plugin.fsdp_version}"
    return "ddp"


def check_launch(config: TrainConfig, accelerator: Any) -> str:
    """The engine's name, after comparing it with what the configuration asks for.

    `accelerate launch --cpu --num_processes 2` silently runs one process, and FSDP flags silently
    become DDP: hence these checks.

    Raises:
        ConfigError: the launch is not the wanted one, or the batch cannot be shared out.
    """
    found = engine_name(accelerator)
    wanted = config.engine
    world = accelerator.num_processes
    if wanted != "any" and wanted != found:
        raise ConfigError(
            f"engine: {wanted} was asked for, but this is {found} with {world} process(es); "
            f"launch with: {_LAUNCH[wanted]}"
        )
    if wanted not in ("any", "single") and world < 2:
        raise ConfigError(
            f"engine: {wanted} runs in {world} process; on CPU use --num_processes 2 without "
            f"--cpu. Launch with: {_LAUNCH[wanted]}"
        )
    asked = int(os.environ.get("SPECEXIT_WORLD_SIZE", world))
    if asked != world:
        raise ConfigError(f"SPECEXIT_WORLD_SIZE is {asked}, but {world} process(es) run")
    if found == "fsdp1":
        raise ConfigError(
            f"engine: FSDP of version 1 is not supported; launch with: {_LAUNCH['fsdp2']}"
        )
    if config.optim.ema is not None and found in ("zero3", "fsdp2"):
        raise ConfigError(
            f"optim.ema: {found} shards the parameters that it averages; use zero2 "
            f"({_LAUNCH['zero2']})"
        )
    parts = world * config.batch.accumulation
    if config.batch.rows % parts:
        raise ConfigError(
            f"batch.rows: {config.batch.rows} rows cannot be dealt to {world} process(es) x "
            f"{config.batch.accumulation} accumulation steps; make it a multiple of {parts}"
        )
    return found


def check_wrapper(name: str, model: Any) -> None:
    """The prepared model must be what the engine's name says."""
    expected = {
        "single": "DraftModel",
        "ddp": "DistributedDataParallel",
        "fsdp2": "FSDPDraftModel",
    }.get(name, "DeepSpeedEngine")
    if type(model).__name__ != expected:
        raise ConfigError(
            f"engine: {name} should wrap the model in {expected}, got {type(model).__name__}; "
            f"launch with: {_LAUNCH[name]}"
        )


def configure_deepspeed(accelerator: Any, batch: BatchSettings) -> None:
    """Settings of DeepSpeed that follow from ours; nothing under another engine."""
    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    if plugin is None:
        return
    settings = plugin.deepspeed_config
    parts = accelerator.num_processes * batch.accumulation
    settings["train_micro_batch_size_per_gpu"] = batch.rows // parts
    settings["gradient_accumulation_steps"] = batch.accumulation
    settings["gradient_clipping"] = 0.0  # groups are clipped apart, by the optimiser
    settings["zero_allow_untested_optimizer"] = True
