"""What the committer costs: per token against incremental detokenisation, and in long texts.

Both run over the same token stream, in turns within each repetition, so that a drift of the machine
meets both; times are CPU time of the thread, which a busy machine does not stretch. The detokeniser
is the one engines use (`tokenizers`' `DecodeStream`); the tokenizer is a byte-level BPE trained on
the texts at hand, unless one is given.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specexit.committer import Committer
from specexit.contracts import Contract, contract

from .guess import guess
from .records import Record, read_records

VOCABULARY = 8_000
TRACES = ("math_lrm", "mmlupro_lrm", "final_line_lrm", "zeroeval_json", "devin_diffs")
WORDS = "so we have that the sum of it and then number is not but wait let me check again"
CONTRACTS: tuple[str | dict[str, Any], ...] = (
    "boxed_integer",
    "boxed_math",
    "final_answer",
    "choice",
    {"type": "label", "labels": ["yes", "no", "not sure"]},
    "json",
    {"type": "report", "fields": ["Status"], "sections": ["Summary"]},
    "patch",
    {"type": "final_tag", "open": "<answer>", "close": "</answer>"},
    {"type": "regex", "pattern": r"RESULT\s*=\s*(\d+)\b", "group": 1},
)


def bench_committer(
    *,
    traces: str | Path | None = None,
    tokenizer: Any = None,
    repetitions: int = 5,
    max_tokens: int = 60_000,
    long_chars: int = 100_000,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure the committer.

    `traces`: a folder of real traces (default: SPECEXIT_TRACES, else the made-up text below);
    `tokenizer`: a `tokenizers.Tokenizer`. Keys of the result: `cost_ratio_to_detokenise` (the
    committer's time over the detokeniser's, each record under the contract of its task, the median
    of the repetitions), `committer_us`, `detokenise_us` (per token), `tokens`, `records`,
    `linearity_10x` (time of a text ten times as long, worst contract), `by_contract` (per contract,
    with all text read as answer: `cost_ratio_to_detokenise`, `linearity_10x`), `texts`.
    """
    records, source = _records(traces, seed)
    tokenizer = tokenizer or train_tokenizer([record.text for record in records])
    work = _token_streams(records, tokenizer, max_tokens)
    tokens = sum(len(ids) for _, ids, _ in work)
    detokenise, commit = [], []
    for _ in range(repetitions):
        detokenise.append(_time_detokenise(tokenizer, [ids for _, ids, _ in work]))
        commit.append(sum(_time_committer(made, pieces, "auto") for made, _, pieces in work))
    ratios = [c / d for c, d in zip(commit, detokenise, strict=True)]
    text = _long_text(records, long_chars, seed)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    base = min(_time_detokenise(tokenizer, [ids]) for _ in range(3))
    by_contract = {}
    for spec in CONTRACTS:
        made = contract(spec)
        pieces = _pieces(tokenizer, ids)
        _time_committer(made, pieces, False)  # warm: automata build their states as needed
        once, growth = [], []
        for _ in range(3):
            # Ten times the text against ten runs over it, so that both last equally long.
            ten_runs = sum(_time_committer(made, pieces, False) for _ in range(10))
            once.append(ten_runs / 10)
            growth.append(10 * _time_committer(made, pieces * 10, False) / ten_runs)
        by_contract[made.name] = {
            "cost_ratio_to_detokenise": round(min(once) / base, 3),
            "linearity_10x": round(statistics.median(growth), 2),
        }
    return {
        "cost_ratio_to_detokenise": round(statistics.median(ratios), 3),
        "linearity_10x": max(row["linearity_10x"] for row in by_contract.values()),
        "committer_us": round(statistics.median(commit) / tokens * 1e6, 3),
        "detokenise_us": round(statistics.median(detokenise) / tokens * 1e6, 3),
        "tokens": tokens,
        "records": len(work),
        "repetitions": repetitions,
        "texts": source,
        "by_contract": by_contract,
    }


def train_tokenizer(texts: Sequence[str]) -> Any:
    """A byte-level BPE tokenizer of the usual kind, trained on the texts in a few seconds."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<think>", "</think>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made


def _records(traces: str | Path | None, seed: int) -> tuple[list[Record], str]:
    folder = traces or os.environ.get("SPECEXIT_TRACES")
    found: list[Record] = []
    for name in TRACES if folder else ():
        for file in sorted(Path(str(folder)).glob(f"{name}*.jsonl*")):
            records = [record for record in read_records(file) if guess(record) is not None]
            found += random.Random(seed).sample(records, min(40, len(records)))
    if found:
        random.Random(seed).shuffle(found)
        return found, "real traces"
    rng = random.Random(seed)
    return [_made_up(rng, number) for number in range(60)], "made up (no real traces given)"


def _made_up(rng: random.Random, number: int) -> Record:
    """Prose with numbers, LaTeX and line breaks, thinking first; not a real trace."""
    words = WORDS.split()

    def paragraph() -> str:
        out = [rng.choice(words) for _ in range(rng.randint(20, 60))]
        out[rng.randrange(len(out))] = rf"\(x_{{{rng.randint(1, 9)}}} = \frac{{{number}}}{{2}}\)"
        return " ".join(out) + ".\n\n"

    thinking = "".join(paragraph() for _ in range(rng.randint(5, 30)))
    text = f"<think>\n{thinking}</think>\n\n{paragraph()}The answer is \\boxed{{{number}}}."
    return Record(text=text, id=str(number), kind="math", task="made_up")


def _token_streams(
    records: Sequence[Record], tokenizer: Any, max_tokens: int
) -> list[tuple[Contract, list[int], list[str]]]:
    out, total = [], 0
    for record in records:
        named = guess(record)
        if named is None or total >= max_tokens:
            continue
        ids = tokenizer.encode(record.text, add_special_tokens=False).ids[: max_tokens - total]
        out.append((named[1], ids, _pieces(tokenizer, ids)))
        total += len(ids)
    return out


def _pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text that each token adds, as a stream hands it over."""
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=False)
    return [stream.step(tokenizer, token) or "" for token in ids]


def _time_detokenise(tokenizer: Any, streams: Sequence[Sequence[int]]) -> float:
    from tokenizers.decoders import DecodeStream

    begin = time.thread_time()
    for ids in streams:
        step = DecodeStream(skip_special_tokens=False).step
        for token in ids:
            step(tokenizer, token)
    return time.thread_time() - begin


def _time_committer(made: Contract, pieces: Sequence[str], thinking: bool | str) -> float:
    """Seconds to read all pieces; a committed answer starts the committer anew."""
    committer = Committer(made, thinking=thinking)
    begin = time.thread_time()
    feed = committer.feed
    for piece in pieces:
        if feed(piece) is not None:
            committer.reset()
    return time.thread_time() - begin


def _long_text(records: Sequence[Record], chars: int, seed: int) -> str:
    """Real text, shuffled and joined: what contracts look for is in it, and what only looks so."""
    texts = [record.text for record in records]
    random.Random(seed).shuffle(texts)
    joined = "\n".join(texts)
    while len(joined) < chars:
        joined += "\n" + joined
    return joined[:chars]


def load_tokenizer(path: str | Path) -> Any:
    """A `tokenizers.Tokenizer` from a `tokenizer.json` (or the folder that holds it)."""
    from tokenizers import Tokenizer

    file = Path(path)
    return Tokenizer.from_file(str(file / "tokenizer.json" if file.is_dir() else file))
