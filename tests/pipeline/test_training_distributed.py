"""Two processes train what one trains: DDP, ZeRO-2, ZeRO-3 on gloo; killed runs resume exactly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.unit.training import synthetic

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs" / "distributed"
TIMEOUT = 600
# fp32 sums in another order; ZeRO adds its flat partitions
TOLERANCE = 1e-5

pytest.importorskip("accelerate")
pytest.importorskip("deepspeed")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments of a run of a few steps; dropout is off, since its draws differ per process."""
    folder = tmp_path_factory.mktemp("distributed")
    target = synthetic.make_target(folder / "target")
    data = synthetic.make_data(folder / "data", 40)
    values = synthetic.config(data, target, signals={"dropout": 0.0}, optim={"epochs": 2})
    file = folder / "config.yaml"
    file.write_text(json.dumps(values.model_dump(mode="json")))  # JSON is YAML
    return ["-m", "training", "--config", str(file), "-q"]


def _environment(engine: str) -> dict[str, str]:
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    env.pop("ACCELERATE_USE_CPU", None)
    if engine == "ddp":
        env["ACCELERATE_USE_CPU"] = "true"
    return env


def _command(engine: str, settings: list[str], out: Path, *extra: str) -> list[str]:
    tail = [*settings, "--out", str(out), *extra]
    if engine == "single":
        return [sys.executable, *tail]
    launcher = [sys.executable, "-m", "accelerate.commands.launch"]
    port = str(29600 + os.getpid() % 300)
    file = str(CONFIGS / f"{engine}.yaml")
    return [*launcher, "--config_file", file, "--main_process_port", port, *tail]


def _run(engine: str, settings: list[str], out: Path, *extra: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        _command(engine, settings, out, *extra),
        env=_environment(engine),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def _log(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def _draft(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model.safetensors")


@pytest.fixture(scope="module")
def alone(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("single") / "head"
    done = _run("single", settings, out)
    assert done.returncode == 0, done.stderr[-2000:]
    return out


@pytest.mark.parametrize("engine", ["ddp", "zero2", "zero3"])
def test_two_processes_give_the_losses_and_weights_of_one_and_resume_after_a_kill(
    engine: str, settings: list[str], alone: Path, tmp_path: Path
) -> None:
    straight = tmp_path / "straight"
    done = _run(engine, settings, straight, f"engine={engine}")
    assert done.returncode == 0, done.stderr[-2000:]
    reference = _log(alone)
    for one, two in zip(reference, _log(straight), strict=True):
        for name in one:
            if name.startswith(("loss_", "grad_", "weight_")):
                assert two[name] == pytest.approx(one[name], rel=TOLERANCE), (two["step"], name)
    killed = tmp_path / "killed"
    _kill_after_a_checkpoint(engine, settings, killed)
    done = _run(engine, settings, killed, f"engine={engine}", "checkpoint.every=2", "--resume")
    assert done.returncode == 0, done.stderr[-2000:]
    expected, found = _draft(straight), _draft(killed)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def _kill_after_a_checkpoint(engine: str, settings: list[str], out: Path) -> None:
    """kill -9 the launcher and its processes as soon as the first checkpoint is whole."""
    command = _command(engine, settings, out, f"engine={engine}", "checkpoint.every=2")
    process = subprocess.Popen(
        command,
        env=_environment(engine),
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        if list((out / "checkpoints").glob("step-*/trainer.json")):
            os.killpg(process.pid, signal.SIGKILL)
            break
        time.sleep(0.02)
    process.wait()
    assert list((out / "checkpoints").glob("step-*")), "no checkpoint was written"


def test_a_launch_with_one_process_instead_of_two_is_refused(
    settings: list[str], tmp_path: Path
) -> None:
    done = _run("single", settings, tmp_path / "head", "engine=ddp")
    assert done.returncode != 0
    assert "ddp was asked for, but this is single with 1 process" in done.stderr
    assert "configs/distributed/ddp.yaml" in done.stderr
