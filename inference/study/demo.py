"""`specexit demo`: data, training, calibration and comparison on the built-in reasoner.

Each stage is the command that a user would type, run as its own process; a stage whose result is
there is skipped, so an interrupted demo goes on where it stopped.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from inference.study.compare import (
    Question,
    Runs,
    answer_lines,
    latency_columns,
    make_row,
    run_interleaved,
)
from inference.study.demo_rows import fixed_budget, oracle_row, position_row
from inference.study.example import make_example
from inference.study.systems import Engines, System
from specexit.checkpoint import load_metadata
from specexit.cli import parser, set_verbosity
from specexit.config import Settings, load
from specexit.dataset import read_traces
from specexit.errors import ConfigError, SpecExitError
from specexit.files import read_json, write_json, write_text
from specexit.provenance import versions, write_provenance
from specexit.replay import ReplayTable
from specexit.report.page import write_page
from specexit.report.table import print_table

log = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[2]
NO_DRAFTER, EAGLE3, BUDGET = "no drafter", "EAGLE3", "EAGLE3, fixed budget"
SPECEXIT, SPECEXIT_ACE, LINEAR = "SpecExit", "SpecExit + ACE", "SpecExit (linear head)"
TIMED = (NO_DRAFTER, EAGLE3, SPECEXIT, SPECEXIT_ACE)


class DemoSettings(Settings):
    """Sizes and limits of the demo."""

    train_questions: int = Field(1100, ge=100)
    """Questions whose traces train the head."""
    calibration_questions: int = Field(500, ge=50)
    """Questions whose traces choose the thresholds."""
    test_questions: int = Field(500, ge=10)
    """Held-out questions that every system answers."""
    latency_questions: int = Field(40, ge=1)
    """Of those, the ones also answered one at a time."""
    batch_latency_questions: int = Field(40, ge=8)
    """Of those, the ones also answered in batches of 8."""
    num_speculative_tokens: int = Field(3, ge=1)
    """Draft tokens a step."""
    epsilon: float = Field(0.02, gt=0, lt=1)
    """Limit on the rate of lost answers."""
    delta: float = Field(0.1, gt=0, lt=1)
    """Probability with which the calibration may miss that limit."""
    max_tokens: int = Field(1400, ge=64)
    """Longest output."""
    processes: int = Field(2, ge=1)
    """Copies of the engine that build the data."""
    dtype: str = "float32"
    """float32 makes all systems agree token by token; bfloat16 has ties."""
    target: str | None = None
    """Folder of another reasoner that answers the same questions; null: the built-in one."""
    seed: int = 0
    """Seed of questions, training and intervals."""


@dataclass(frozen=True)
class Places:
    """Folders of a demo run."""

    out: Path
    target: Path

    @property
    def data(self) -> Path:
        """The labelled data set."""
        return self.out / "data"

    @property
    def head(self) -> Path:
        """The draft head with the `memory` signal head."""
        return self.out / "head"

    @property
    def linear(self) -> Path:
        """The same draft with the `linear` signal head."""
        return self.out / "head-linear"

    def table(self, head: Path) -> Path:
        """The replay table of a head."""
        return self.out / f"replay-{head.name}"


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
    )
    stage(
        "2/5 train",
        places.head / "specexit" / "specexit.json",
        *("train", "--config", _config("train/tiny.yaml"), "--out", head),
        f"target={target}",
        f"data={data}",
        f"features.dtype={settings.dtype}",
        f"seed={settings.seed}",
    )
    for path in (head, linear):
        table = str(places.table(Path(path)))
        stage(
            f"3/5 replay table of {Path(path).name}",
            Path(table) / "replay.json",
            *("replay", "record", "--head", path, "--data", data, "--target", target),
            *("--out", table, f"dtype={settings.dtype}"),
        )
        stage(
            f"4/5 thresholds of {Path(path).name}",
            Path(table) / "certificate.json",
            *("calibrate", "--config", _config("calibrate/tiny.yaml"), "--out", table),
            f"table={table}",
            f"head={path}",
            f"epsilon={settings.epsilon}",
            f"delta={settings.delta}",
        )


def compare(
    places: Places, settings: DemoSettings, *, quiet: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run all systems interleaved; the results and an example trace, JSON-able."""
    log.info("5/5 compare")
    traces = list(read_traces(places.data, "test"))[: settings.test_questions]
    questions = [Question.from_trace(t) for t in traces]
    metadata = load_metadata(places.head)
    contract = questions[0].contract
    table = ReplayTable.load(places.table(places.head))
    budget = fixed_budget(table, settings.epsilon)
    systems = [
        System(NO_DRAFTER),
        System(EAGLE3, head=places.head),
        System(BUDGET, head=places.head, arguments={"thinking_token_budget": budget}),
        System(LINEAR, head=places.linear, exits=True),
        System(SPECEXIT, head=places.head, exits=True),
        System(SPECEXIT_ACE, head=places.head, exits=True, contract=contract),
    ]
    engines = Engines(
        places.target,
        num_speculative_tokens=settings.num_speculative_tokens,
        max_num_seqs=64,
        dtype=settings.dtype,
        seed=settings.seed,
    )

    def run(n: int, batch_size: int, label: str, names: Sequence[str] = ()) -> Runs:
        return run_interleaved(
            engines,
            [s for s in systems if not names or s.name in names],
            questions[:n],
            batch_size=batch_size,
            max_tokens=settings.max_tokens,
            quiet=quiet,
            label=label,
        )

    runs = run(len(questions), 64, "accuracy, batches of 64")
    alone = run(settings.latency_questions, 1, "latency, one at a time", TIMED)
    batched = run(settings.batch_latency_questions, 8, "latency, batches of 8", TIMED)
    engines.close()
    lines = answer_lines(questions, runs, metadata.think)
    write_text(places.out / "answers.jsonl", "\n".join(lines) + "\n")
    full = runs[NO_DRAFTER]
    rows = [
        make_row(s.name, questions, runs[s.name], full, metadata.think, settings.seed)
        | (latency_columns(alone[s.name], batched[s.name]) if s.name in TIMED else {})
        for s in systems
    ]
    rows.append(position_row(table, settings.epsilon, settings.seed))
    rows.append(oracle_row(traces, settings.seed))
    results = {
        "meta": {
            "title": "SpecExit on the built-in reasoner",
            "n": len(questions),
            "seed": settings.seed,
            "settings": settings.model_dump(),
            "fixed_budget": budget,
            "policy": metadata.policy.model_dump(mode="json"),
            "calibration": metadata.calibration or {},
            "head": metadata.metrics,
            "versions": versions(),
        },
        "rows": rows,
    }
    example = make_example(table, traces, runs[SPECEXIT_ACE], metadata, places.target)
    return results, example


def stage(name: str, marker: Path, *command: str) -> None:
    """Run `specexit COMMAND` as a process of its own, unless its result `marker` is there.

    Raises:
        SpecExitError: the command failed; its own message is above.
    """
    if marker.exists():
        log.info("%s: there already (%s)", name, marker)
        return
    log.info("%s: specexit %s", name, " ".join(command))
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "specexit.cli", *command], check=False)
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


def _config(name: str) -> str:
    path = ROOT / "configs" / name
    if not path.is_file():
        raise SpecExitError(
            f"demo: {path} is missing; run the demo from a source checkout (`make demo`)"
        )
    return str(path)
