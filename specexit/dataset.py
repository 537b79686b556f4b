"""The labelled dataset: one row a trace, in Parquet. Written by `data_build`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from specexit.errors import ConfigError

Split = Literal["train", "calibration", "test"]
SPLITS: tuple[Split, ...] = ("train", "calibration", "test")

_IDS = pa.list_(pa.int32())
_FLOATS = pa.list_(pa.float32())


def _field(name: str, kind: pa.DataType, text: str) -> pa.Field:
    return pa.field(name, kind, metadata={"description": text})


# T = thinking tokens, K + 1 = boundaries (boundary 0 lies right after the think start).
SCHEMA = pa.schema(
    [
        _field("id", pa.string(), "unique id of the trace"),
        _field("question", pa.string(), "the user's question"),
        _field("gold", pa.string(), "reference answer, null where unknown"),
        _field("contract", pa.string(), "answer contract as JSON"),
        _field("split", pa.string(), "train, calibration or test, by the question's hash"),
        _field("prompt_ids", _IDS, "token ids of the prompt, as the engine saw them"),
        _field("output_ids", _IDS, "token ids of the full output, think tags and answer included"),
        _field("think_start", pa.int32(), "index in output_ids of the first thinking token"),
        _field("think_end", pa.int32(), "index in output_ids of the think end (or the length)"),
        _field("token_logprobs", _FLOATS, "[T] of the thinking tokens; empty for imported text"),
        _field("boundaries", _IDS, "[K + 1] thinking tokens before each boundary, the first is 0"),
        _field("probed", pa.list_(pa.bool_()), "[K + 1] whether a trial answer was generated"),
        _field("trial_answers", pa.list_(pa.string()), "[K + 1] JSON of the trial answer, or null"),
        _field("trial_agrees", pa.list_(pa.bool_()), "[K + 1] equals `answer`, else false"),
        _field("trial_correct", pa.list_(pa.bool_()), "[K + 1] trial answer equals gold, or null"),
        _field("trial_logprob", _FLOATS, "[K + 1] mean log-probability of the trial, 0 if none"),
        _field("trial_tokens", _IDS, "[K + 1] tokens of the trial answer up to its commit"),
        _field("answer", pa.string(), "JSON of the full output's answer, null where it has none"),
        _field("correct", pa.bool_(), "whether the full output's answer equals gold, or null"),
        _field("k_star", pa.int32(), "minimal sufficient boundary, null where there is none"),
        _field("t_star", pa.int32(), "thinking tokens up to it"),
        _field("confidence", _FLOATS, "[T] geometric mean probability; empty without k_star"),
        _field("progress", _FLOATS, "[T] t / t_star, 1 in the redundant tail"),
        _field("remain", _FLOATS, "[T] t_star - t tokens, 0 in the redundant tail"),
        _field("keep", pa.bool_(), "whether the trace may train a head"),
        _field("drop_reason", pa.string(), "why not, null where keep"),
        _field("meta", pa.string(), "JSON of further fields of the question"),
        _field("answer_logprob", pa.float32(), "mean log-probability of the full output's answer"),
        _field("answer_tokens", pa.int32(), "its tokens, from the think end to the commit"),
        _field("search", pa.string(), "how k_star was found: stable, first, bisect, all, ..."),
        _field("sampling", pa.string(), "JSON of the full output's sampling parameters"),
    ]
)


@dataclass(frozen=True)
class Trace:
    """One row as Python values, named as in `SCHEMA`."""

    id: str
    question: str
    gold: str | None
    contract: str
    split: Split
    prompt_ids: list[int]
    output_ids: list[int]
    think_start: int
    think_end: int
    token_logprobs: list[float]
    boundaries: list[int]
    probed: list[bool]
    trial_answers: list[str | None]
    trial_agrees: list[bool]
    trial_correct: list[bool | None]
    trial_logprob: list[float]
    trial_tokens: list[int]
    answer: str | None
    correct: bool | None
    k_star: int | None
    t_star: int | None
    confidence: list[float]
    progress: list[float]
    remain: list[float]
    keep: bool
    drop_reason: str | None
    meta: str
    answer_logprob: float | None = None
    answer_tokens: int | None = None
    search: str | None = None
    sampling: str | None = None

    @property
    def thinking_ids(self) -> list[int]:
        """The T thinking tokens."""
        return self.output_ids[self.think_start : self.think_end]


def split_of(question: str, fractions: Sequence[float] = (0.7, 0.15, 0.15)) -> Split:
    """Split by the question's hash, so that no question is on two sides."""
    u = int.from_bytes(hashlib.sha256(question.strip().encode()).digest()[:8], "big") / 2**64
    if u < fractions[0]:
        return "train"
    return "calibration" if u < fractions[0] + fractions[1] else "test"


def shards(folder: str | Path) -> list[Path]:
    """Parquet files of a dataset folder (`DIR/data/*.parquet`), in order.

    Raises:
        ConfigError: there are none.
    """
    files = sorted((Path(folder) / "data").glob("*.parquet"))
    if not files:
        raise ConfigError(
            f"data: {folder} holds no data/*.parquet; "
            "give the folder that `specexit data build` wrote"
        )
    return files


def read_traces(
    folder: str | Path, split: Split | None = None, *, kept_only: bool = False
) -> Iterator[Trace]:
    """Stream the rows of a dataset, shard by shard."""
    for file in shards(folder):
        for batch in pq.ParquetFile(file).iter_batches(batch_size=256):
            for row in batch.to_pylist():
                if (split is None or row["split"] == split) and (row["keep"] or not kept_only):
                    yield Trace(**row)


def table_of(traces: Sequence[Trace]) -> pa.Table:
    """Traces as a table with `SCHEMA`."""
    rows: list[dict[str, Any]] = [vars(t) for t in traces]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def write_shard(path: str | Path, traces: Sequence[Trace]) -> None:
    """Write one Parquet file, atomically; same rows, same bytes."""
    write_table(path, table_of(traces))


def write_table(path: str | Path, table: pa.Table) -> None:
    """Write a table as Parquet, atomically."""
    from specexit.files import atomic_path

    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def data_hash(folder: str | Path) -> str:
    """Digest of all shards, 16 hex digits: what a head records of its data."""
    from specexit.files import sha256_of

    digest = hashlib.sha256()
    for file in shards(folder):
        digest.update(f"{file.name}:{sha256_of(file)}\n".encode())
    return digest.hexdigest()[:16]
