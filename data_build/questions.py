"""Questions from the built-in generator, JSONL, Parquet or `datasets`, streamed and checked."""

from __future__ import annotations

import glob
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from data_build.config import Reading, Source
from specexit import contract as make_contract
from specexit.contracts import Contract, ContractError
from specexit.dataset import Split, split_of
from specexit.errors import ConfigError
from specexit.tiny.data import Split as TinyPart


@dataclass(frozen=True)
class Question:
    """One question; `output` is an existing output of the target, if there is one."""

    id: str
    question: str
    messages: list[dict[str, str]]
    gold: str | None
    contract: Contract | None
    split: Split
    output: str | None = None
    model: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass
class Reader:
    """Streams the questions of a configuration.

    `require_contract` off lets questions without a contract pass (their contract is None).

    Bad rows are counted in `dropped` (reason: count) and the first of each kind is kept in
    `examples`. Memory: 16 bytes of digest per question read, to find duplicates.
    """

    settings: Reading
    require_contract: bool = True
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._contracts: dict[str, Contract] = {}
        self._ids: set[bytes] = set()
        self._texts: set[bytes] = set()
        self._splits: dict[bytes, Split] = {}

    def __iter__(self) -> Iterator[Question]:
        for number, source in enumerate(self.settings.questions):
            where = f"questions[{number}]"
            for row_number, row in enumerate(self._rows(source)):
                try:
                    question = self._question(source, row, where)
                except _BadRowError as bad:
                    self.dropped[bad.reason] += 1
                    self.examples.setdefault(bad.reason, f"{where} row {row_number}: {bad}")
                    continue
                yield question

    def _rows(self, source: Source) -> Iterator[Any]:
        for count, row in enumerate(read_rows(source)):
            if source.n is not None and count >= source.n:
                return
            yield row

    def _question(self, source: Source, row: Any, where: str) -> Question:
        if isinstance(row, Exception):
            reason = "not_utf8" if isinstance(row, UnicodeDecodeError) else "not_json"
            raise _BadRowError(reason, str(row))
        if not isinstance(row, dict):
            raise _BadRowError("not_an_object", f"{type(row).__name__} instead of an object")
        names = source.fields
        text, messages = self._messages(row, names.question, names.messages)
        output = row.get(names.output)
        if output is not None and not isinstance(output, str):
            raise _BadRowError("bad_output", f"{names.output} is {type(output).__name__}, not text")
        asked = text.strip() if len(messages) <= 2 else json.dumps(messages)  # a chat: all of it
        key = row.get(names.id)
        named = asked if output is None else f"{asked}\0{output}"
        identity = str(key) if key is not None else hashlib.sha256(named.encode()).hexdigest()[:16]
        self._once(self._ids, identity, "duplicate_id", f"id {identity!r} came before")
        split = source.split or split_of(asked, self.settings.fractions)
        if output is None:  # several recorded outputs of one question are fine
            self._once(self._texts, asked, "duplicate_question", f"{text[:60]!r} came before")
        self._one_split(asked, split)
        gold = row.get(names.gold)
        used = {names.id, names.question, names.messages, names.gold, names.contract, names.output}
        return Question(
            id=identity,
            question=text,
            messages=messages,
            gold=None if gold is None else gold if isinstance(gold, str) else json.dumps(gold),
            contract=self._contract(source, row.get(names.contract), where),
            split=split,
            output=output,
            model=_text_or_none(row.get(names.model)),
            meta={k: v for k, v in row.items() if k not in used and v is not None},
        )

    def _messages(
        self, row: dict[str, Any], question: str, messages: str
    ) -> tuple[str, list[dict[str, str]]]:
        text, chat = row.get(question), row.get(messages)
        if isinstance(text, str) and text.strip():
            chat = [{"role": "user", "content": self.settings.prompt.replace("{question}", text)}]
        elif isinstance(chat, list) and chat:
            if not all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in chat):
                raise _BadRowError("bad_messages", f"{messages}: each needs role and content")
            chat = [{"role": str(m.get("role", "user")), "content": m["content"]} for m in chat]
            text = chat[-1]["content"]
        else:
            raise _BadRowError("missing_question", f"neither {question} nor {messages} holds text")
        if self.settings.system and chat[0]["role"] != "system":
            chat = [{"role": "system", "content": self.settings.system}, *chat]
        try:
            json.dumps(chat, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:  # lone surrogates
            raise _BadRowError("not_utf8", str(error)) from None
        return text, chat

    def _contract(self, source: Source, own: Any, where: str) -> Contract | None:
        if source.contracts:
            own = source.contracts.get(str(own))
        spec = self.settings.contract if own is None else own
        if spec is None:
            if not self.require_contract:
                return None
            raise ConfigError(
                f"{where}: a row has no contract; set contract in the configuration "
                "(such as boxed_integer), or name the column in fields.contract"
            )
        key = spec if isinstance(spec, str) else json.dumps(spec, sort_keys=True)
        if key not in self._contracts:
            try:
                self._contracts[key] = make_contract(spec)
            except ContractError as error:
                raise _BadRowError("bad_contract", str(error)) from None
        return self._contracts[key]

    def _one_split(self, asked: str, split: Split) -> None:
        """Refuse a question that stands in another split already."""
        digest = hashlib.blake2b(asked.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        before = self._splits.setdefault(digest, split)
        if before != split:
            raise _BadRowError("two_splits", f"{asked[:60]!r} is in {before} already, not {split}")

    def _once(self, seen: set[bytes], text: str, reason: str, message: str) -> None:
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        if digest in seen:
            raise _BadRowError(reason, message)
        seen.add(digest)


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


class _BadRowError(Exception):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def read_rows(source: Source) -> Iterator[Any]:
    """Rows of a source, one at a time; a row that cannot be read comes as its exception.

    Raises:
        ConfigError: the files do not exist, or the source needs a package that is missing.
    """
    if source.source == "tiny":
        from specexit.tiny import questions

        part = cast(TinyPart, source.part)  # checked by the settings
        yield from questions(part, source.n or 0, source.seed)
    elif source.source == "jsonl":
        for file in files_of(source.path or ""):
            yield from _json_lines(file)
    elif source.source == "parquet":
        import pyarrow.parquet as pq

        for file in files_of(source.path or ""):
            for batch in pq.ParquetFile(file).iter_batches(batch_size=256):
                yield from batch.to_pylist()
    else:
        yield from _hub_rows(source)


def files_of(pattern: str) -> list[Path]:
    """Files that a path or glob names, in order.

    Raises:
        ConfigError: there is none.
    """
    files = [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]
    files = [file for file in files if file.is_file()]
    if not files:
        raise ConfigError(f"questions.path: no file matches {pattern!r}")
    return files


def _json_lines(file: Path) -> Iterator[Any]:
    with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                yield json.loads(line.decode("utf-8"))
            except ValueError as error:  # also UnicodeDecodeError
                yield error


def _hub_rows(source: Source) -> Iterator[Any]:
    try:
        import datasets
    except ImportError:
        raise ConfigError(
            "questions.source: datasets is not installed; pip install 'specexit[train]'"
        ) from None
    path = source.path or ""
    if (Path(path) / "dataset_info.json").is_file() or (Path(path) / "dataset_dict.json").is_file():
        loaded = datasets.load_from_disk(path)
        rows = loaded[source.part] if isinstance(loaded, datasets.DatasetDict) else loaded
    else:
        rows = datasets.load_dataset(path, source.name, split=source.part, streaming=True)
    for row in rows:
        yield dict(row)
