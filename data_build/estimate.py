"""`--dry-run`: what a run would do and how many tokens it would cost, from assumptions shown."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from data_build.build import output_reader
from data_build.config import DataSettings
from data_build.folder import RunFolder
from data_build.prompts import prompt_ids
from data_build.questions import Reader

SAMPLE = 200


def describe(settings: DataSettings, out: str) -> str:
    """Read and check all questions, write nothing; a text for the terminal."""
    reader = Reader(settings)
    outputs = output_reader(settings)
    splits: Counter[str] = Counter()
    prompt_tokens: list[int] = []
    imported = 0
    for question in reader:
        splits[f"{question.split} ({settings.strategy(question.split)})"] += 1
        imported += question.output is not None
        if len(prompt_tokens) < SAMPLE:
            prompt_tokens.append(len(prompt_ids(outputs.tokenizer, question, settings)))
    count = splits.total()
    batches = -(-count // settings.batch_size)
    done = len(RunFolder(out).finished()) if Path(out).is_dir() else 0
    prompt = sum(prompt_tokens) / len(prompt_tokens) if prompt_tokens else 0.0
    worst = settings.sampling.max_tokens
    lines = [
        f"target        {settings.target}",
        f"questions     {count}: " + ", ".join(f"{k} {v}" for k, v in sorted(splits.items())),
        f"dropped rows  {dict(reader.dropped) or 'none'}",
        *(f"              e.g. {example}" for example in reader.examples.values()),
        f"to generate   {count - imported} ({imported} bring their output)",
        f"batches       {batches} of {settings.batch_size}, {done} of them finished in {out}",
        f"prompts       {prompt:.0f} tokens on average (first {len(prompt_tokens)})",
        f"full outputs  at most {(count - imported) * worst:,} tokens ({worst} each)",
        "probes        about 0.3 to 1.3 tokens computed per token of the outputs with prefix",
        f"              caching: at most {int(1.3 * (count - imported) * worst):,}",
        "nothing was written",
    ]
    return "\n".join(lines)
