"""`specexit bench run`: all systems and baselines on one set of questions, interleaved."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field
from tqdm import tqdm

from inference.study import baselines
from inference.study.bench_rows import (
    Scored,
    budget_of,
    certified_on,
    replay_rows,
    timing,
)
from inference.study.compare import Question, make_row
from inference.study.prepare import ensure
from inference.study.probing import ProbingRunner, deer_rule, repeated_rule
from inference.study.replay_cli import target_folder
from inference.study.systems import Engines, System
from inference.study.timed import EngineRunner, Runner, Timed
from specexit.checkpoint import load_metadata
from specexit.cli import parser, set_verbosity
from specexit.config import Settings, load
from specexit.dataset import Split, Trace, read_traces
from specexit.files import write_json
from specexit.provenance import versions, write_provenance
from specexit.replay import Replay, ReplayTable
from specexit.report.table import print_table
from specexit.think import ThinkFormat

log = logging.getLogger(__name__)

FULL, EAGLE3, NO_THINKING = "no drafter", "EAGLE3", "EAGLE3, no thinking"
BUDGET, SPECEXIT, SPECEXIT_ACE = "EAGLE3, fixed budget", "SpecExit", "SpecExit + ACE"
DEER, REPEATED = "EAGLE3, DEER-style", "EAGLE3, repeated answer"


class BenchSettings(Settings):
    """What to compare, and on how much."""

    target: str = "tiny"
    """Folder of the target, `tiny` for the built-in reasoner."""
    data: str
    """Data set whose test questions are asked."""
    heads: dict[str, str]
    """Name -> head folder; the first is SpecExit, further ones are shown beside it."""
    table: str
    """Replay table of the first head: thresholds of the baselines, replayed rows, the oracle."""
    split: Split = "test"
    """Split that is asked."""
    questions: int = Field(500, ge=1)
    """Questions for accuracy and tokens, in batches."""
    latency_questions: int = Field(40, ge=1)
    """Of those, the ones also asked one at a time, for latency and time to a valid answer."""
    batch_size: int = Field(32, ge=1)
    """Questions that arrive together in the accuracy run."""
    probing: bool = True
    """Also run the baselines that probe trial answers live."""
    attention_traces: int = Field(0, ge=0)
    """Train the probe baselines on so many training traces; 0 leaves them out."""
    epsilon: float = Field(0.01, gt=0, lt=1)
    """Risk limit of every rule's threshold."""
    delta: float = Field(0.1, gt=0, lt=1)
    """Its failure probability."""
    num_speculative_tokens: int = Field(3, ge=1)
    """Draft tokens a step."""
    max_tokens: int = Field(1400, ge=1)
    """Longest output."""
    trial_tokens: int = Field(1024, ge=1)
    """Longest trial answer of the probing rules; take the data set's `probe.max_answer_tokens`."""
    dtype: str = "float32"
    """Of the engines."""
    seed: int = 0
    """Seed of intervals and probes."""


def main(argv: list[str]) -> int:
    """Run the command."""
    p = parser(
        "bench run",
        "Accuracy, tokens, latency and time to a valid answer of all systems in one run.",
        config=True,
        json=True,
    )
    p.add_argument("--out", metavar="DIR", help="write results.json and provenance here")
    args = p.parse_args(argv)
    set_verbosity(args)
    settings = load(BenchSettings, args.config, args.overrides)
    ensure([settings.table, settings.data, *settings.heads.values()])
    result = run(settings, quiet=args.quiet)
    if args.out:
        write_json(Path(args.out) / "results.json", result)
        write_provenance(
            args.out,
            command="specexit bench run " + " ".join(argv),
            seed=settings.seed,
            config=settings.model_dump(mode="json"),
        )
    if args.json:
        write_json(args.json, result)
    print_table(result["rows"], result["meta"]["title"])
    return 0


def run(settings: BenchSettings, *, quiet: bool = False) -> dict[str, Any]:
    """The whole comparison, JSON-able."""
    table = ReplayTable.load(settings.table)
    calibration, test = Replay(table.of_split("calibration")), Replay(table.of_split("test"))
    by_id = {t.id: t for t in read_traces(settings.data, settings.split)}
    traces = [by_id[i] for i in test.table.ids if i in by_id][: settings.questions]
    questions = [Question.from_trace(t) for t in traces]
    think = load_metadata(next(iter(settings.heads.values()))).think
    more: Sequence[Scored] = ()
    if settings.attention_traces:
        from inference.study.probe_scores import probe_scores

        more = probe_scores(settings, calibration.table, test.table, quiet=quiet)
    rows = replay_rows(
        calibration, test, settings.epsilon, settings.delta, more=more, seed=settings.seed
    )
    runners, engines = make_runners(settings, calibration, traces[0], think)
    try:
        rows = live_rows(settings, runners, questions, think, quiet=quiet) + rows
    finally:
        for each in engines:
            each.close()
    return {
        "meta": {
            "title": f"{len(questions)} questions, {settings.target}",
            "n": len(questions),
            "seed": settings.seed,
            "settings": settings.model_dump(mode="json"),
            "versions": versions(),
        },
        "rows": rows,
    }


def make_runners(
    settings: BenchSettings, calibration: Replay, example: Trace, think: ThinkFormat
) -> tuple[list[Runner], list[Engines]]:
    """All live systems, and the engines that they share."""
    from transformers import AutoTokenizer

    from specexit.split import StepSplitter

    heads = {name: Path(folder) for name, folder in settings.heads.items()}
    first, *others = heads
    target = target_folder(settings.target)
    arguments: dict[str, Any] = {
        "num_speculative_tokens": settings.num_speculative_tokens,
        "dtype": settings.dtype,
        "seed": settings.seed,
    }
    engines = Engines(target, **arguments)

    def system(name: str, **options: Any) -> EngineRunner:
        suffix = options.pop("suffix", ())
        made = System(name, **options)
        return EngineRunner(made, engines, max_tokens=settings.max_tokens, suffix=suffix)

    budget = budget_of(calibration, settings.epsilon, settings.delta)
    opened = [*example.output_ids[: example.think_start], *think.end_ids]
    runners: list[Runner] = [
        system(FULL),
        system(EAGLE3, head=heads[first]),
        system(NO_THINKING, head=heads[first], suffix=opened),
        system(BUDGET, head=heads[first], arguments={"thinking_token_budget": budget}),
        system(SPECEXIT, head=heads[first], exits=True),
        system(SPECEXIT_ACE, head=heads[first], exits=True, ace=True),
        *(system(f"SpecExit, {name} head", head=heads[name], exits=True) for name in others),
    ]
    if not settings.probing:
        return runners, [engines]
    cached = Engines(target, **arguments, enable_prefix_caching=True)
    tokenizer = AutoTokenizer.from_pretrained(target)
    splitter = StepSplitter.from_tokenizer(tokenizer)
    blank = splitter.contains_blank_line.nonzero().flatten().tolist()
    for name, rule, score in (
        (DEER, deer_rule, baselines.deer),
        (REPEATED, repeated_rule, baselines.repeated_answer),
    ):
        limit = certified_on(calibration, score, settings.epsilon, settings.delta)
        runners.append(
            ProbingRunner(
                name,
                rule(limit),
                cached,
                head=heads[first],
                think=think,
                boundary_ids=blank,
                max_tokens=settings.max_tokens,
                trial_tokens=settings.trial_tokens,
            )
        )
    return runners, [engines, cached]


def live_rows(
    settings: BenchSettings,
    runners: Sequence[Runner],
    questions: Sequence[Question],
    think: ThinkFormat,
    *,
    quiet: bool,
) -> list[dict[str, Any]]:
    """Run everything: in batches for accuracy and throughput, one by one for latency."""
    for runner in runners:  # load, warm up
        runner.answer(questions[:1])
    many, wall = _interleaved(runners, questions, settings.batch_size, "batches", quiet)
    alone, _ = _interleaved(
        runners, questions[: settings.latency_questions], 1, "one at a time", quiet
    )
    tags = _tags(settings, think)
    rows = []
    for runner in runners:
        answered = many[runner.name]
        row = make_row(runner.name, questions, answered, many[FULL], think, settings.seed)
        row |= timing(questions, answered, alone[runner.name], wall[runner.name], tags, think)
        rows.append(row)
    return rows


def _interleaved(
    runners: Sequence[Runner],
    questions: Sequence[Question],
    batch_size: int,
    label: str,
    quiet: bool,
) -> tuple[dict[str, list[Timed]], dict[str, float]]:
    """Every system answers every block, in rotating order: the machine's speed drifts."""
    import time

    runs: dict[str, list[Timed]] = {r.name: [] for r in runners}
    wall = dict.fromkeys(runs, 0.0)
    blocks = [questions[i : i + batch_size] for i in range(0, len(questions), batch_size)]
    with tqdm(total=len(blocks) * len(runners), desc=label, unit="batch", disable=quiet) as bar:
        for i, block in enumerate(blocks):
            for j in range(len(runners)):
                runner = runners[(i + j) % len(runners)]
                bar.set_postfix_str(runner.name)
                started = time.perf_counter()
                runs[runner.name] += runner.answer(block)
                wall[runner.name] += time.perf_counter() - started
                bar.update()
    return runs, wall


def _tags(settings: BenchSettings, think: ThinkFormat) -> tuple[str, str]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target_folder(settings.target))
    return tokenizer.decode(list(think.start_ids)), tokenizer.decode(list(think.end_ids))
