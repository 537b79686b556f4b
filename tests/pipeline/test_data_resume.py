"""`specexit data build` with real vLLM, killed with SIGKILL at random moments, run again."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

from specexit.dataset import read_traces
from specexit.files import read_json

N, BATCH = 12, 4


def command(config: Path, out: Path) -> list[str]:
    arguments = ["data", "build", "--config", str(config), "--out", str(out), "--quiet"]
    return [sys.executable, "-m", "specexit.cli", *arguments]


def finished(out: Path) -> int:
    return len(list((out / "data").glob("*.parquet")))


def kill_after(config: Path, out: Path, batches: int, delay_s: float) -> None:
    """Start a build, wait until `batches` files are there and a moment more, kill it."""
    with subprocess.Popen(command(config, out)) as process:
        while finished(out) < batches and process.poll() is None:
            time.sleep(0.05)
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)


def test_a_killed_build_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    settings = {
        "target": "tiny",
        "contract": "boxed_integer",
        "questions": [{"source": "tiny", "part": "train", "n": N, "seed": 3}],
        "engine": {"dtype": "float32", "max_model_len": 1536, "max_num_seqs": 16},
        "sampling": {"max_tokens": 1280},
        "probe": {"max_answer_tokens": 24},
        "batch_size": BATCH,
    }
    config.write_text(yaml.safe_dump(settings))
    whole, out = tmp_path / "whole", tmp_path / "out"
    subprocess.run(command(config, whole), check=True)
    rng = random.Random(0)
    for batches in (1, 2):
        kill_after(config, out, batches, rng.uniform(0.0, 1.5))
    assert finished(out) >= 1
    subprocess.run(command(config, out), check=True)
    assert finished(out) == N // BATCH
    for file in sorted((whole / "data").iterdir()):
        assert file.read_bytes() == (out / "data" / file.name).read_bytes()
    assert len({t.id for t in read_traces(out)}) == N
    assert read_json(out / "stats.json") == read_json(whole / "stats.json")
