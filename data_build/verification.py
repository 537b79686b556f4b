"""Check sufficient boundaries against brute force: every boundary, generated afresh."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_build.build import MakeEngine, output_reader
from data_build.config import DataSettings
from data_build.drive import Job, drive
from data_build.engine import Engine, Request
from data_build.outputs import OutputReader
from data_build.search import boundaries_to_probe, sufficient
from specexit import contract as make_contract
from specexit.config import parse
from specexit.dataset import Trace, read_traces
from specexit.errors import ConfigError
from specexit.files import read_json


@dataclass
class Verification:
    """What `verify` found.

    `n` traces were checked, `equal` of them have the same k* by brute force; `trials` trial
    answers of the dataset were generated again, `trials_equal` of them came out the same.
    """

    n: int = 0
    equal: int = 0
    trials: int = 0
    trials_equal: int = 0
    fallbacks: int = 0
    """Traces whose bisection fell back to `stable`."""
    different: list[dict[str, Any]] = field(default_factory=list)
    """Id, k* of the dataset and of brute force, for each difference."""


def settings_of(folder: str | Path) -> DataSettings:
    """The settings that a dataset was built with.

    Raises:
        ConfigError: the folder has no run.json.
    """
    file = Path(folder) / "run.json"
    if not file.is_file():
        raise ConfigError(f"{folder}: no run.json; give a folder that `specexit data build` wrote")
    return parse(DataSettings, read_json(file), where=f"{file}: ")


def fresh_engine(settings: DataSettings) -> Engine:
    """An engine that shares nothing between requests."""
    if settings.engine.kind == "openai":
        from data_build.openai_engine import OpenAiEngine

        return OpenAiEngine(settings.engine)
    from data_build.vllm_engine import VllmEngine

    return VllmEngine(
        settings.target_path(),
        settings.engine,
        tokenizer=settings.tokenizer,
        seed=settings.seed,
        prefix_caching=False,
    )


def verify(
    folder: str | Path,
    count: int,
    *,
    engine_of: MakeEngine = fresh_engine,
    progress: bool = True,
) -> Verification:
    """Generate the trial answers of all boundaries again for `count` traces, evenly chosen among
    those that were probed, without prefix caching and without early stops."""
    settings = settings_of(folder)
    reader = output_reader(settings)
    chosen = _evenly(folder, count)
    found = Verification()
    if not chosen:
        return found
    engine = engine_of(settings)
    with tqdm(total=len(chosen), unit="trace", disable=not progress, desc="verify") as bar:

        def finished(result: tuple[Trace, dict[int, Any]]) -> None:
            _compare(found, settings, *result)
            bar.update()

        jobs = (_job(i, trace, settings, reader) for i, trace in enumerate(chosen))
        try:
            drive(engine, jobs, finished)
        finally:
            engine.close()
    found.different.sort(key=lambda entry: str(entry["id"]))
    return found


def _evenly(folder: str | Path, count: int) -> list[Trace]:
    total = sum(1 for t in _probed(folder))
    wanted = {i * total // min(count, total) for i in range(min(count, total))}
    return [trace for i, trace in enumerate(_probed(folder)) if i in wanted]


def _probed(folder: str | Path) -> Iterator[Trace]:
    return (trace for trace in read_traces(folder) if any(trace.probed))


def _job(
    place: int, trace: Trace, settings: DataSettings, reader: OutputReader
) -> Job[tuple[Trace, dict[int, Any]]]:
    contract = make_contract(json.loads(trace.contract))
    grid = boundaries_to_probe(settings.strategy(trace.split), trace.boundaries, settings.probe)
    prefix = [*trace.prompt_ids, *trace.output_ids[: trace.think_start]]
    completions = yield [
        Request(
            key=f"{place}/{k}",
            prompt_ids=[
                *prefix,
                *trace.thinking_ids[: trace.boundaries[k]],
                *reader.think.end_ids,
            ],
            max_tokens=settings.probe.max_answer_tokens,
        )
        for k in grid
    ]
    answers = {
        k: reader.answer(contract, completion)
        for k, completion in zip(grid, completions, strict=True)
    }
    return trace, answers


def _compare(
    found: Verification, settings: DataSettings, trace: Trace, answers: dict[int, Any]
) -> None:
    contract = make_contract(json.loads(trace.contract))
    full = json.loads(trace.answer or "null")
    agrees = {k: contract.equal(answer.value, full) for k, answer in answers.items()}
    strategy = settings.strategy(trace.split)
    rule = settings.probe.search if strategy == "all" else strategy
    brute = sufficient(agrees, "first" if rule == "first" else "stable")
    found.n += 1
    found.fallbacks += trace.search is not None and "fell back" in trace.search
    for k, probed in enumerate(trace.probed):
        if probed:
            found.trials += 1
            found.trials_equal += answers[k].json == trace.trial_answers[k]
    if brute == trace.k_star:
        found.equal += 1
    else:
        found.different.append({"id": trace.id, "k_star": trace.k_star, "brute_force": brute})
