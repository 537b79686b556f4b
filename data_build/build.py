"""Build a dataset: batch by batch, each batch one Parquet file that appears by rename."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any

from tqdm import tqdm

from data_build.config import DataSettings
from data_build.drive import drive
from data_build.engine import Engine
from data_build.folder import RunFolder
from data_build.job import TraceBuilder
from data_build.journal import Journal, JournalledEngine
from data_build.outputs import OutputReader
from data_build.questions import Question, Reader
from data_build.rows import Built, Cost
from specexit.dataset import table_of
from specexit.errors import SpecExitError
from specexit.files import write_json
from specexit.split import StepSplitter
from specexit.think import ThinkFormat

logger = logging.getLogger(__name__)

MakeEngine = Callable[[DataSettings], Engine]


class EngineFailedError(SpecExitError):
    """Too many requests of a batch failed; what is finished stays, a later run goes on."""


def make_engine(settings: DataSettings) -> Engine:
    """The engine that the settings name."""
    if settings.engine.kind == "openai":
        from data_build.openai_engine import OpenAiEngine

        return OpenAiEngine(settings.engine)
    from data_build.vllm_engine import VllmEngine

    return VllmEngine(
        settings.target_path(),
        settings.engine,
        tokenizer=settings.tokenizer,
        seed=settings.seed,
        random_sampling=settings.sampling.temperature > 0,
    )


def output_reader(settings: DataSettings) -> OutputReader:
    """Tokenizer, think format and step split of the target.

    Raises:
        ConfigError: no such tokenizer, or it has no think tags and none are configured.
    """
    tokenizer = load_tokenizer(settings.tokenizer or settings.target_path())
    think = ThinkFormat.from_tokenizer(tokenizer, settings.think.start, settings.think.end)
    splitter = StepSplitter.from_tokenizer(tokenizer, mode=settings.step_split)
    return OutputReader(tokenizer, think, splitter)


def load_tokenizer(name: str) -> Any:
    """A `transformers` tokenizer.

    Raises:
        ConfigError: it cannot be loaded.
    """
    from transformers import AutoTokenizer

    from specexit.errors import ConfigError

    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ConfigError(f"tokenizer: cannot load {name}: {error}") from None


def batches(questions: Iterator[Question], size: int) -> Iterator[tuple[int, list[Question]]]:
    """Numbered lists of at most `size` questions."""
    number = 0
    while batch := list(islice(questions, size)):
        yield number, batch
        number += 1


def build(
    settings: DataSettings,
    folder: RunFolder,
    *,
    engine_of: MakeEngine = make_engine,
    progress: bool = True,
) -> Reader:
    """Make the batches that `folder` owns and does not have yet.

    Returns:
        The reader, which has read all questions and counted the dropped ones.

    Raises:
        EngineFailedError: endpoints failed too often.
        ConfigError: see `output_reader`, `RunFolder.begin`.
    """
    reader = Reader(settings)
    outputs = output_reader(settings)
    folder.begin(settings)
    engine: Engine | None = None
    builder: TraceBuilder | None = None
    total = _count(settings) if progress else None
    bar = tqdm(total=total, unit="trace", disable=not progress, dynamic_ncols=True, desc="data")
    dropped: Counter[str] = Counter()
    try:
        for number, questions in batches(iter(reader), settings.batch_size):
            if folder.has(number) or not folder.owns(number):
                bar.update(len(questions))
                continue
            if engine is None or builder is None:
                engine = engine_of(settings)
                builder = TraceBuilder(settings, outputs, engine.max_model_len)

            def show(built: Built) -> None:
                if built.trace.drop_reason:
                    dropped[built.trace.drop_reason] += 1
                bar.set_postfix(dropped=sum(dropped.values()), refresh=False)
                bar.update()

            traces, summary = _batch(settings, folder, number, questions, engine, builder, show)
            folder.finish(number, table_of(traces), summary)
            logger.debug("batch %d: %d traces", number, len(traces))
    finally:
        bar.close()
        if engine is not None:
            engine.close()
    write_json(
        folder.state / "input.json",
        {"dropped": dict(sorted(reader.dropped.items())), "examples": reader.examples},
    )
    return reader


def _batch(
    settings: DataSettings,
    folder: RunFolder,
    number: int,
    questions: list[Question],
    engine: Engine,
    builder: TraceBuilder,
    show: Callable[[Built], None],
) -> tuple[list[Any], dict[str, Any]]:
    """Run one batch; its rows in the questions' order and its summary."""
    built: list[Built] = []
    allowed = settings.engine.max_error_share * len(questions)

    def finished(one: Built) -> None:
        built.append(one)
        folder.note(number, len(built))
        if one.error and sum(other.error is not None for other in built) > allowed:
            raise EngineFailedError(
                f"engine: more than {allowed:g} of a batch's {len(questions)} traces failed, the "
                f"last with: {one.error}. Mend the engine and run the same command again: finished "
                "batches and journalled answers are kept (engine.max_error_share sets the limit)"
            )
        show(one)

    engine.forget()
    before = engine.counters()
    jobs = (builder.job(place, question) for place, question in enumerate(questions))
    if engine.exact_replay:
        drive(engine, jobs, finished)
    else:
        with Journal(folder.journal_file(number)) as journal:
            drive(JournalledEngine(engine, journal), jobs, finished)
    after = engine.counters()
    built.sort(key=lambda one: one.place)
    cost = Cost()
    for one in built:
        cost.add(one.cost)
    summary = {
        "cost": asdict(cost),
        "engine": {name: after[name] - before.get(name, 0.0) for name in after},
        "traces": len(built),
        "dropped": sum(not one.trace.keep for one in built),
        "several_thinks": sum(one.several_thinks > 0 for one in built),
    }
    return [one.trace for one in built], summary


def _count(settings: DataSettings) -> int | None:
    """Questions to come, for the progress bar; None where counting would load them twice."""
    if any(source.source == "datasets" and source.n is None for source in settings.questions):
        return None
    return sum(1 for _ in Reader(settings))
