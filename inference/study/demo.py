"""`specexit demo`: data, training, calibration and comparison on the built-in reasoner.

Each stage is the command that a user would type, run as its own process; a stage whose result is
there is skipped, so an interrupted demo goes on where it stopped.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from inference.study.demo_compare import compare
from inference.study.demo_settings import DemoSettings, Places
from specexit.cli import parser, set_verbosity
from specexit.config import load
from specexit.errors import ConfigError, SpecExitError
from specexit.files import read_json, write_json
from specexit.provenance import write_provenance
from specexit.report.page import write_page
from specexit.report.table import print_table

log = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[2]


def main(argv: list[str]) -> int:
    """Run the demo; see the module's docstring."""
    p = parser("demo", "The whole pipeline on the built-in reasoner.", config=True)
    p.add_argument("--out", metavar="DIR", default="runs/demo", help="folder to write to")
    p.add_argument("--from-scratch", action="store_true", help="train the reasoner too (1 h)")
    args = p.parse_args(argv)
    set_verbosity(args)
    config = args.config or str(ROOT / "configs" / "demo" / "demo.yaml")
    settings = load(DemoSettings, config, args.overrides)
    started = time.monotonic()
    out = Path(args.out)
    _claim(out, settings)
    if not (out / "results.json").exists():
        places = Places(out, _target(out, settings.target, args.from_scratch))
        prepare(places, settings)
        results, example = compare(places, settings, quiet=args.quiet)
        results["meta"]["minutes"] = round((time.monotonic() - started) / 60, 1)
        write_json(out / "example.json", example)
        write_provenance(
            out,
            command="specexit demo " + " ".join(argv),
            seed=settings.seed,
            config=settings.model_dump(),
        )
        write_json(out / "results.json", results)
    results = read_json(out / "results.json")
    page = write_page(out)
    print_table(results["rows"], results["meta"]["title"])
    print(f"figures: {out / 'results.json'}\npage:    {page}")
    return 0


def prepare(places: Places, settings: DemoSettings) -> None:
    """Data, heads, replay tables and thresholds."""
    data, head, linear = str(places.data), str(places.head), str(places.linear)
    target = str(places.target)
    stage(
        "1/5 data",
        places.data / "stats.json",
        *("data", "build", "--config", _config("data/tiny.yaml"), "--out", data),
        f"target={target}",
        f"questions={_questions(settings)}",
        f"sampling.max_tokens={settings.max_tokens}",
        f"engine.dtype={settings.dtype}",
        f"engine.data_parallel_size={settings.processes}",
        f"batch_size={_batch_size(settings)}",
        "probe.spread=0",  # training traces: the search's own trial answers label the confidence
    )
    stage(
        "2/5 train",
        places.head / "specexit" / "specexit.json",
        *("train", "--config", _config("train/tiny.yaml"), "--out", head),
        f"target={target}",
        f"data={data}",
        f"features.dtype={settings.dtype}",
        f"seed={settings.seed}",
        threads=min(4, len(os.sched_getaffinity(0))),
    )
    with ThreadPoolExecutor(2) as pool:  # one process each
        list(pool.map(lambda path: thresholds(places, settings, path), (head, linear)))


def thresholds(places: Places, settings: DemoSettings, head: str) -> None:
    """Replay table and thresholds of one head."""
    table = str(places.table(Path(head)))
    stage(
        f"3/5 replay table of {Path(head).name}",
        Path(table) / "replay.json",
        *("replay", "record", "--head", head, "--data", str(places.data)),
        *("--target", str(places.target), "--out", table, f"dtype={settings.dtype}"),
    )
    stage(
        f"4/5 thresholds of {Path(head).name}",
        Path(table) / "certificate.json",
        *("calibrate", "--config", _config("calibrate/tiny.yaml"), "--out", table),
        f"table={table}",
        f"head={head}",
        f"epsilon={settings.epsilon}",
        f"delta={settings.delta}",
    )


def stage(name: str, marker: Path, *command: str, threads: int = 1) -> None:
    """Run `specexit COMMAND` as a process of its own, unless its result `marker` is there.

    Args:
        threads: of its tensor operations.

    Raises:
        SpecExitError: the command failed; its own message is above.
    """
    if marker.exists():
        log.info("%s: there already (%s)", name, marker)
        return
    log.info("%s: specexit %s", name, " ".join(command))
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "specexit.cli", *command],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        check=False,
    )
    if done.returncode:
        raise SpecExitError(f"demo: stage {name!r} failed with exit code {done.returncode}")
    if not marker.exists():
        raise SpecExitError(f"demo: stage {name!r} did not write {marker}")
    log.info("%s: %.0f s", name, time.monotonic() - started)


def _claim(out: Path, settings: DemoSettings) -> None:
    """Make `out`, or go on in it if it was begun with the same settings.

    Raises:
        ConfigError: it was begun with others; its stages would not fit together.
    """
    file = out / "demo.json"
    wanted = settings.model_dump()
    if file.exists() and read_json(file) != wanted:
        differ = [k for k, v in read_json(file).items() if wanted.get(k) != v]
        raise ConfigError(
            f"--out: {out} holds a demo with other settings ({', '.join(differ)}); "
            "give another folder or remove this one"
        )
    write_json(file, wanted)


def _target(out: Path, given: str | None, from_scratch: bool) -> Path:
    if given is not None:
        return Path(given)
    if from_scratch:
        made = out / "tiny"
        stage("0/5 reasoner", made / "model.safetensors", "tiny", "train", "--out", str(made))
        return made
    from specexit.tiny import model_path

    return Path(model_path())


def _questions(settings: DemoSettings) -> str:
    """Sources for the data builder; calibration questions are further ones of the train part."""
    sources = [
        {"part": "train", "n": settings.train_questions, "seed": 0, "split": "train"},
        {"part": "train", "n": settings.calibration_questions, "seed": 1, "split": "calibration"},
        {"part": "heldout", "n": settings.test_questions, "seed": 0, "split": "test"},
    ]
    return json.dumps([{"source": "tiny", **source} for source in sources])


def _batch_size(settings: DemoSettings) -> int:
    """Two equal batches for each process, so that no core is idle at the end."""
    total = settings.train_questions + settings.calibration_questions + settings.test_questions
    return -(-total // (2 * settings.processes))


def _config(name: str) -> str:
    path = ROOT / "configs" / name
    if not path.is_file():
        raise SpecExitError(
            f"demo: {path} is missing; run the demo from a source checkout (`make demo`)"
        )
    return str(path)
