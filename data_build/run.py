"""One `specexit data build`: in this process, or in several that share the folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from tqdm import tqdm

from data_build.build import MakeEngine, build, make_engine, output_reader
from data_build.config import DataSettings
from data_build.finish import finish
from data_build.folder import RunFolder
from data_build.questions import Reader
from specexit.engine_env import has_gpu, own_core
from specexit.errors import SpecExitError


def run(
    settings: DataSettings,
    out: str,
    *,
    shard: tuple[int, int] = (0, 1),
    progress: bool = True,
    engine_of: MakeEngine = make_engine,
) -> dict[str, Any] | None:
    """Build a folder, or a share of it.

    Args:
        engine_of: makes the engine when the first batch needs it (not used by worker processes).

    Returns:
        The statistics; None for a share (`merge` makes them when all are there).
    """
    copies = settings.engine.data_parallel_size
    if copies > 1 and settings.engine.kind == "vllm":
        output_reader(settings)  # fail here, once, rather than in every worker
        with RunFolder(out, shard) as folder:
            folder.begin(settings)
        index, count = shard
        shares = [(index * copies + i, count * copies) for i in range(copies)]
        _in_workers(settings, out, shares, progress)
    with RunFolder(out, shard) as folder:
        # With workers this only reads the questions: every batch is there.
        build(settings, folder, engine_of=engine_of, progress=progress and copies == 1)
        return finish(folder, settings) if shard[1] == 1 else None


def _in_workers(
    settings: DataSettings, out: str, shards: list[tuple[int, int]], progress: bool
) -> None:
    """Run one process a share and wait; all stop when one fails.

    Raises:
        SpecExitError: a worker failed; its output has the reason.
    """
    alone = settings.model_dump(mode="json")
    alone["engine"]["data_parallel_size"] = 1
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "worker.yaml"
        config.write_text(yaml.safe_dump(alone), encoding="utf-8")
        workers = []
        for place, (index, count) in enumerate(shards):
            command = [sys.executable, "-m", "specexit.cli", "data", "build", "--quiet"]
            command += ["--config", str(config), "--out", out, "--shard", f"{index}/{count}"]
            environment = _own_devices(place, len(shards), settings.engine.tensor_parallel_size)
            workers.append(subprocess.Popen(command, env=environment))
        try:
            _wait(workers, Path(out), settings, progress)
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.terminate()
            for worker in workers:
                worker.wait()


def _wait(
    workers: list[subprocess.Popen[bytes]], out: Path, settings: DataSettings, progress: bool
) -> None:
    folder = RunFolder(out)
    total = sum(1 for _ in Reader(settings)) if progress else None
    with tqdm(total=total, unit="trace", disable=not progress, desc="data") as bar:
        while True:
            codes = [worker.poll() for worker in workers]
            if progress:
                done = list(folder.summaries())
                made = sum(summary["traces"] for summary in done) + folder.noted()
                bar.update(made - bar.n)
                bar.set_postfix(dropped=sum(summary["dropped"] for summary in done))
            failed = [code for code in codes if code]
            if failed:
                raise SpecExitError(
                    f"engine.data_parallel_size: a worker ended with code {failed[0]}, see its "
                    "message above; what is finished stays, run the same command again"
                )
            if all(code == 0 for code in codes):
                return
            time.sleep(0.5)


def _own_devices(place: int, count: int, devices: int) -> dict[str, str]:
    """Environment of a worker: its own GPUs, or its own CPU cores.

    Two vLLM processes on one core are slower than one, and vLLM pins itself.
    """
    environment = dict(os.environ)
    if has_gpu():
        import torch

        given = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = given.split(",") if given else [str(i) for i in range(torch.cuda.device_count())]
        own = names[place * devices : (place + 1) * devices]
        if len(own) < devices:
            raise SpecExitError(
                f"engine: data_parallel_size {count} x tensor_parallel_size {devices} needs "
                f"{count * devices} GPUs, {len(names)} are visible"
            )
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
    return environment | own_core(place, count)
