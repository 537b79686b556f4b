"""The replay table: what was recorded of full thinkings, packed; and its Parquet folder.

DIR/replay.json              `format_version`, step split, where the signals came from
DIR/table/00000.parquet ...  one row a trace (`_SCHEMA`)
DIR/provenance.json          written by the command
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from specexit.dataset import Trace
from specexit.errors import ConfigError
from specexit.files import atomic_path, read_json, write_json
from specexit.split import SplitMode

FORMAT_VERSION = 1
_ROWS_PER_FILE = 2000

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]

_INTS = pa.list_(pa.int32())
_FLOATS = pa.list_(pa.float32())
_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("split", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("answer_tokens", pa.int32()),
        ("full_correct", pa.int32()),
        ("k_star", pa.int32()),
        ("signals", _FLOATS),  # [T * 3], token by token
        ("step", _INTS),  # [T], empty where not recorded
        ("entropy", _FLOATS),  # [T], empty where not recorded
        ("boundaries", _INTS),
        ("agrees", _INTS),
        ("correct", _INTS),
        ("answer_id", _INTS),
        ("trial_tokens", _INTS),
        ("trial_logprob", _FLOATS),
        ("end_entropy", _FLOATS),  # [K + 1], empty where not recorded
    ]
)


@dataclass(frozen=True, eq=False)
class ReplayTable:
    """N traces; T_i thinking tokens and K_i + 1 boundaries in trace i, the first at 0 tokens.

    Token columns are packed `[sum T_i]`, boundary columns `[sum (K_i + 1)]`; trace i owns
    `token_offsets[i]:token_offsets[i + 1]` and `boundary_offsets[i]:boundary_offsets[i + 1]`.

    Attributes:
        ids, splits: `[N]` of the data set.
        signals: `[sum T, 3] float32`, raw (confidence, progress, remain in tokens).
        step: `[sum T]` verification step that accepted each token, None where not recorded.
        entropy: `[sum T]` of the target's next-token distribution at each token, nats, or None.
        end_entropy: at each boundary, that of the token after an injected think end, or None.
        boundaries: thinking tokens before each boundary.
        agrees: 1 where the trial answer equals that of the full output.
        correct: 1/0 where it equals gold or not, -1 without gold.
        answer_id: equal numbers within a trace mean equal trial answers; -1 is no answer.
        trial_tokens: tokens of the trial answer up to its commit.
        trial_logprob: mean log-probability of those tokens.
        prompt_tokens, answer_tokens: `[N]` of the recorded output, think end not counted.
        full_correct: `[N]` 1/0, -1 without gold.
        k_star: `[N]` minimal sufficient boundary, -1 where there is none.
        step_split: how the boundaries were found.
        source: where the signals came from (head, target, method), JSON-able.
    """

    ids: tuple[str, ...]
    splits: tuple[str, ...]
    token_offsets: NDArray[np.int64]
    boundary_offsets: NDArray[np.int64]
    signals: FloatArray
    boundaries: IntArray
    agrees: IntArray
    correct: IntArray
    answer_id: IntArray
    trial_tokens: IntArray
    trial_logprob: FloatArray
    prompt_tokens: IntArray
    answer_tokens: IntArray
    full_correct: IntArray
    k_star: IntArray
    step: IntArray | None = None
    entropy: FloatArray | None = None
    end_entropy: FloatArray | None = None
    step_split: SplitMode = "paragraph"
    source: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tokens, marks = int(self.token_offsets[-1]), int(self.boundary_offsets[-1])
        for name in ("signals", "step", "entropy"):
            column = getattr(self, name)
            assert column is None or len(column) == tokens, name
        for name in (
            "boundaries",
            "agrees",
            "correct",
            "answer_id",
            "trial_tokens",
            "trial_logprob",
            "end_entropy",
        ):
            column = getattr(self, name)
            assert column is None or len(column) == marks, name

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def think_tokens(self) -> IntArray:
        """`[N]`, T of each trace."""
        return np.diff(self.token_offsets).astype(np.int32)

    @property
    def t_star(self) -> IntArray:
        """`[N]` thinking tokens of the oracle: up to k_star, all of them where there is none."""
        at = self.boundary_offsets[:-1] + np.maximum(self.k_star, 0)
        return np.where(self.k_star < 0, self.think_tokens, self.boundaries[at]).astype(np.int32)

    def tokens_of(self, i: int) -> slice:
        """Where trace i lies in the token columns."""
        return slice(int(self.token_offsets[i]), int(self.token_offsets[i + 1]))

    def boundaries_of(self, i: int) -> slice:
        """Where trace i lies in the boundary columns."""
        return slice(int(self.boundary_offsets[i]), int(self.boundary_offsets[i + 1]))

    def padded(self, column: NDArray[Any], fill: Any) -> NDArray[Any]:
        """A boundary column as `[N, max K + 1]`, `fill` beyond each trace's last boundary."""
        counts = np.diff(self.boundary_offsets)
        out = np.full((len(self), int(counts.max(initial=0))), fill, dtype=column.dtype)
        out[np.arange(out.shape[1]) < counts[:, None]] = column
        return out

    def select(self, rows: Sequence[int] | NDArray[Any]) -> ReplayTable:
        """The traces `rows` (indices or a mask `[N]`), in that order."""
        index = np.arange(len(self))[np.asarray(rows)]
        at_tokens = _ranges(self.token_offsets, index)
        at_marks = _ranges(self.boundary_offsets, index)
        changed: dict[str, Any] = {
            "ids": tuple(self.ids[i] for i in index),
            "splits": tuple(self.splits[i] for i in index),
            "token_offsets": _offsets(np.diff(self.token_offsets)[index]),
            "boundary_offsets": _offsets(np.diff(self.boundary_offsets)[index]),
        }
        for column in fields(self):
            value = getattr(self, column.name)
            if column.name in changed or not isinstance(value, np.ndarray):
                continue
            per_token = column.name in ("signals", "step", "entropy")
            per_trace = len(value) == len(self) and column.name in _PER_TRACE
            where = index if per_trace else at_tokens if per_token else at_marks
            changed[column.name] = value[where]
        return replace(self, **changed)

    def of_split(self, split: str) -> ReplayTable:
        """The traces of one split.

        Raises:
            ConfigError: there are none.
        """
        mask = np.array([s == split for s in self.splits])
        if not mask.any():
            known = ", ".join(sorted(set(self.splits)))
            raise ConfigError(f"split: the replay table holds no {split!r} traces; it has {known}")
        return self.select(mask)

    @classmethod
    def from_traces(
        cls,
        traces: Sequence[Trace],
        signals: Sequence[NDArray[Any]],
        *,
        steps: Sequence[NDArray[Any]] | None = None,
        entropy: Sequence[NDArray[Any]] | None = None,
        end_entropy: Sequence[NDArray[Any]] | None = None,
        think_end_tokens: int = 1,
        step_split: SplitMode = "paragraph",
        source: Mapping[str, Any] | None = None,
    ) -> ReplayTable:
        """Join recorded signals with the data builder's trial answers.

        A trace whose full output has no answer is wrong, and so are its exits if nobody probed
        them: there was nothing to lose.

        Args:
            signals: per trace `[T, 3]`; `steps` and `entropy` per trace `[T]`;
                `end_entropy` per trace `[K + 1]`.
            think_end_tokens: ids of the think end, not counted as answer.

        Raises:
            ConfigError: a boundary was not probed, or a trace and its signals differ in length.
        """
        if not traces:
            raise ConfigError("replay: no traces; build data with kept traces of this split")
        for trace, signal in zip(traces, signals, strict=True):
            _check(trace, np.asarray(signal))
        for name, column in (("steps", steps), ("entropy", entropy)):
            if column is not None and [len(c) for c in column] != [len(s) for s in signals]:
                raise ConfigError(f"replay: {name} and signals differ in length")
        return cls(
            ids=tuple(t.id for t in traces),
            splits=tuple(t.split for t in traces),
            token_offsets=_offsets([len(s) for s in signals]),
            boundary_offsets=_offsets([len(t.boundaries) for t in traces]),
            signals=np.concatenate([np.asarray(s, np.float32) for s in signals]),
            boundaries=_pack(t.boundaries for t in traces),
            agrees=_pack(t.trial_agrees for t in traces),
            correct=_pack(_trial_correct(t) for t in traces),
            answer_id=_pack(_answer_ids(t.trial_answers) for t in traces),
            trial_tokens=_pack(t.trial_tokens for t in traces),
            trial_logprob=np.concatenate([np.asarray(t.trial_logprob, np.float32) for t in traces]),
            prompt_tokens=np.array([len(t.prompt_ids) for t in traces], np.int32),
            answer_tokens=np.array(
                [max(0, len(t.output_ids) - t.think_end - think_end_tokens) for t in traces],
                np.int32,
            ),
            full_correct=np.array([_full_correct(t) for t in traces], np.int32),
            k_star=np.array([-1 if t.k_star is None else t.k_star for t in traces], np.int32),
            step=None if steps is None else _pack(steps),
            entropy=None if entropy is None else np.concatenate(entropy).astype(np.float32),
            end_entropy=(
                None if end_entropy is None else np.concatenate(end_entropy).astype(np.float32)
            ),
            step_split=step_split,
            source=dict(source or {}),
        )

    def save(self, folder: str | Path) -> None:
        """Write the folder, each file atomically, `replay.json` last."""
        out = Path(folder)
        (out / "replay.json").unlink(missing_ok=True)
        for stale in (out / "table").glob("*.parquet"):
            stale.unlink()
        for part, start in enumerate(range(0, len(self), _ROWS_PER_FILE)):
            rows = [self._row(i) for i in range(start, min(start + _ROWS_PER_FILE, len(self)))]
            with atomic_path(out / "table" / f"{part:05d}.parquet") as temporary:
                pq.write_table(
                    pa.Table.from_pylist(rows, schema=_SCHEMA), temporary, compression="zstd"
                )
        about = {
            "format_version": FORMAT_VERSION,
            "traces": len(self),
            "step_split": self.step_split,
            "source": dict(self.source),
        }
        write_json(out / "replay.json", about)

    @classmethod
    def load(cls, folder: str | Path) -> ReplayTable:
        """Read a folder.

        Raises:
            ConfigError: it is no replay table, is incomplete, or has another version.
        """
        about = _read_about(Path(folder))
        files = sorted((Path(folder) / "table").glob("*.parquet"))
        rows = [row for file in files for row in pq.read_table(file, schema=_SCHEMA).to_pylist()]
        if len(rows) != about["traces"]:
            raise ConfigError(
                f"replay: {folder} holds {len(rows)} traces, its replay.json says "
                f"{about['traces']}; record it again"
            )
        has = {name: any(row[name] for row in rows) for name in _OPTIONAL}

        def floats(name: str) -> FloatArray:
            return np.concatenate([np.asarray(row[name], np.float32) for row in rows])

        def per_trace(name: str) -> IntArray:
            return np.array([row[name] for row in rows], np.int32)

        signals = floats("signals").reshape(-1, 3)
        return cls(
            ids=tuple(row["id"] for row in rows),
            splits=tuple(row["split"] for row in rows),
            token_offsets=_offsets([len(row["signals"]) // 3 for row in rows]),
            boundary_offsets=_offsets([len(row["boundaries"]) for row in rows]),
            signals=signals,
            boundaries=_pack(row["boundaries"] for row in rows),
            agrees=_pack(row["agrees"] for row in rows),
            correct=_pack(row["correct"] for row in rows),
            answer_id=_pack(row["answer_id"] for row in rows),
            trial_tokens=_pack(row["trial_tokens"] for row in rows),
            trial_logprob=floats("trial_logprob"),
            prompt_tokens=per_trace("prompt_tokens"),
            answer_tokens=per_trace("answer_tokens"),
            full_correct=per_trace("full_correct"),
            k_star=per_trace("k_star"),
            step=_pack(row["step"] for row in rows) if has["step"] else None,
            entropy=floats("entropy") if has["entropy"] else None,
            end_entropy=floats("end_entropy") if has["end_entropy"] else None,
            step_split=about["step_split"],
            source=about["source"],
        )

    def _row(self, i: int) -> dict[str, Any]:
        tokens, marks = self.tokens_of(i), self.boundaries_of(i)
        row: dict[str, Any] = {"id": self.ids[i], "split": self.splits[i]}
        row |= {name: int(getattr(self, name)[i]) for name in _PER_TRACE}
        row["signals"] = self.signals[tokens].reshape(-1)
        for name in _OPTIONAL:
            column = getattr(self, name)
            where = marks if name == "end_entropy" else tokens
            row[name] = [] if column is None else column[where]
        return row | {name: getattr(self, name)[marks] for name in _PER_BOUNDARY}


_OPTIONAL = ("step", "entropy", "end_entropy")
_PER_TRACE = ("prompt_tokens", "answer_tokens", "full_correct", "k_star")
_PER_BOUNDARY = (
    "boundaries",
    "agrees",
    "correct",
    "answer_id",
    "trial_tokens",
    "trial_logprob",
)


def _read_about(folder: Path) -> dict[str, Any]:
    path = folder / "replay.json"
    if not path.is_file():
        raise ConfigError(
            f"replay: {folder} holds no replay.json; give the folder that "
            "`specexit replay record` wrote"
        )
    about = read_json(path)
    if about.get("format_version") != FORMAT_VERSION:
        raise ConfigError(
            f"replay: {folder} has format version {about.get('format_version')!r}, this release "
            f"reads {FORMAT_VERSION}; record the table again"
        )
    return dict(about)


def _check(trace: Trace, signals: NDArray[Any]) -> None:
    length = trace.think_end - trace.think_start
    if signals.shape != (length, 3):
        raise ConfigError(
            f"replay: trace {trace.id} has {length} thinking tokens, its signals have shape "
            f"{signals.shape}; record them with the same data"
        )
    if trace.answer is not None and not all(trace.probed):
        raise ConfigError(
            f"replay: trace {trace.id} has {trace.probed.count(False)} boundaries without a trial "
            "answer; build the data with every boundary probed (search: stable)"
        )
    if not np.isfinite(signals[:, :2]).all() or np.isnan(signals).any():
        raise ConfigError(f"replay: trace {trace.id} has signals that are not numbers")


def _offsets(counts: Iterable[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.fromiter(counts, np.int64))]).astype(np.int64)


def _ranges(offsets: NDArray[np.int64], index: NDArray[Any]) -> NDArray[np.int64]:
    parts = [np.arange(offsets[i], offsets[i + 1]) for i in index]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _pack(columns: Iterable[Iterable[Any]]) -> IntArray:
    return np.concatenate([np.asarray(column, np.int32) for column in columns])


def _full_correct(trace: Trace) -> int:
    return 0 if trace.answer is None else _tristate(trace.correct)


def _trial_correct(trace: Trace) -> list[int]:
    if not any(trace.probed):
        return [0] * len(trace.boundaries)
    return [_tristate(c) for c in trace.trial_correct]


def _tristate(value: bool | None) -> int:
    return -1 if value is None else int(value)


def _answer_ids(answers: Sequence[str | None]) -> list[int]:
    """Number equal JSON values alike, in order of first appearance."""
    seen: dict[str, int] = {}
    keys = [None if a is None else json.dumps(json.loads(a), sort_keys=True) for a in answers]
    return [-1 if key is None else seen.setdefault(key, len(seen)) for key in keys]
