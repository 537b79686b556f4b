"""FSDP2: refused without a GPU; its parts on two processes of a CPU."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import yaml
from torch import nn

from specexit.errors import ConfigError
from training.config import TrainConfig
from training.engine import check_launch, engine_name, make_accelerator
from training.optimiser import GroupClippedAdamW
from training.resume import _load_moments, _moments
from training.sharding import sharded_like, whole

ROOT = Path(__file__).resolve().parents[3]
CLIP = 0.05


def _config(**sections: Any) -> TrainConfig:
    return TrainConfig.model_validate({"data": "d", **sections})


def test_fsdp2_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"fsdp2 needs GPUs.*configs/distributed/ddp\.yaml"):
        make_accelerator(_config(engine="fsdp2"))
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match="would silently run DDP"):
        make_accelerator(_config())


def _accelerator(version: int) -> Any:
    plugin = SimpleNamespace(fsdp_version=version)
    return SimpleNamespace(
        distributed_type="DistributedType.FSDP",
        num_processes=2,
        state=SimpleNamespace(fsdp_plugin=plugin),
    )


def test_fsdp_of_version_2_is_an_engine_and_version_1_is_not() -> None:
    assert engine_name(_accelerator(2)) == "fsdp2"
    assert check_launch(_config(engine="fsdp2"), _accelerator(2)) == "fsdp2"
    with pytest.raises(ConfigError, match=r"version 1.*fsdp2\.yaml"):
        check_launch(_config(), _accelerator(1))


def test_averages_of_sharded_weights_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"optim\.ema: fsdp2 shards"):
        check_launch(_config(optim={"ema": 0.9}), _accelerator(2))


def test_the_launch_file_is_of_version_2() -> None:
    values = yaml.safe_load((ROOT / "configs" / "distributed" / "fsdp2.yaml").read_text())
    assert values["distributed_type"] == "FSDP"
    assert values["fsdp_config"]["fsdp_version"] == 2


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.SiLU(), nn.Linear(10, 3))


def _optimiser(model: nn.Module, *, sharded: bool) -> GroupClippedAdamW:
    groups = [{"name": "draft", "params": list(model.parameters()), "clip": CLIP}]
    return GroupClippedAdamW(groups, lr=1e-2, betas=(0.9, 0.95), sharded=sharded)


def _steps(model: nn.Module, optimiser: GroupClippedAdamW, first: int, number: int) -> None:
    for step in range(first, first + number):
        torch.manual_seed(step)
        x = torch.randn(8, 6)
        if dist.is_initialized():  # half of the batch each; gradients are averaged
            x = x[dist.get_rank() :: 2]
        model(x).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()


def _fully_sharded(rank: int, folder: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    model = fully_shard(_model(), mesh=mesh)
    optimiser = _optimiser(model, sharded=True)
    _steps(model, optimiser, 0, 3)
    weights, moments = whole(model.state_dict()), whole(_moments(optimiser))
    # from the checkpoint into fresh shards, as resuming does
    again = fully_shard(_model(), mesh=mesh)
    second = _optimiser(again, sharded=True)
    current = again.state_dict()
    again.load_state_dict({n: sharded_like(t, current[n]) for n, t in weights.items()})
    _load_moments(second, moments)
    _steps(model, optimiser, 3, 2)
    _steps(again, second, 3, 2)
    straight, resumed = whole(model.state_dict()), whole(again.state_dict())
    if rank == 0:
        norm = optimiser.last_norms["draft"]
        torch.save((straight, resumed, norm), f"{folder}/found.pt")
    dist.destroy_process_group()


def test_a_fully_sharded_model_is_clipped_saved_and_resumed_as_a_whole_one(
    tmp_path: Path,
) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    mp.spawn(_fully_sharded, args=(str(tmp_path),), nprocs=2)
    straight, resumed, norm = torch.load(tmp_path / "found.pt")
    model = _model()
    optimiser = _optimiser(model, sharded=False)
    _steps(model, optimiser, 0, 5)
    assert optimiser.last_norms["draft"] > CLIP
    assert norm == pytest.approx(optimiser.last_norms["draft"], rel=1e-5)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(straight[name], value, rtol=0, atol=1e-6)
        assert torch.equal(straight[name], resumed[name])
