"""The committer: tells, while an output streams, when its answer is final.

    committer = Committer(contract("boxed_integer"), thinking=True)
    for delta in stream:
        commit = committer.feed(delta)
        if commit is not None:
            break                      # keep text[:commit.position]; the rest changes nothing

What holds, for every contract that is not marked heuristic:

- *Chunk invariance*: the commit is the same for every way of cutting the text.
- *Soundness*: no continuation changes what the contract's evaluator (`contract.project`) returns.
- *Nothing is taken back*: `position` is at or after the start of the delta that decided (but for
  the few characters of a possible think start that turned out to be none), and
  `contract.project(text[:position])` is the committed answer.
"""

from __future__ import annotations

import codecs
import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from specexit.contracts import Contract, contract
from specexit.contracts.base import Match
from specexit.contracts.thinking import gate


@dataclass(frozen=True, slots=True)
class Commit:
    """A final answer.

    `answer`: the projected answer; `position`: how many characters of the stream are kept (the
    text up to there has this answer); `contract`: the contract's name.
    """

    answer: Any
    position: int
    contract: str


class Committer:
    """Feed one output's text deltas to a contract.

    `thinking`: True when the prompt opened the thinking, False when there is none, `"auto"` to go
    by the tags (see `specexit.contracts.thinking`). Nothing commits inside the thinking.
    """

    __slots__ = ("_closed", "_machine", "_settings", "commit", "consumed", "contract")

    def __init__(
        self,
        contract_: Contract | str | dict[str, Any],
        *,
        thinking: bool | str = "auto",
        think_start: str = "<think>",
        think_end: str = "</think>",
    ) -> None:
        self.contract = contract(contract_)
        self._settings = (thinking, think_start, think_end)
        self.reset()

    def reset(self) -> None:
        """Start over for another output."""
        self._machine = gate(self.contract.acceptor, *self._settings)
        self._closed = False
        self.consumed = 0
        self.commit: Commit | None = None

    def feed(self, delta: str) -> Commit | None:
        """Read a delta; return the commit if the answer became final in it.

        The commit is returned once (and kept in `commit`); what is fed afterwards is ignored.
        """
        if self.commit is not None or self._closed:
            return None
        match = self._machine.feed(delta)
        if match is None:
            self.consumed += len(delta)
            return None
        return self._keep(match)

    def close(self) -> Commit | None:
        """End of the output: accept an answer that only lacked a terminator."""
        if self.commit is not None or self._closed:
            return None
        self._closed = True
        match = self._machine.close()
        return None if match is None else self._keep(match)

    def _keep(self, match: Match) -> Commit:
        self.commit = Commit(match.answer, self.consumed + match.end, self.contract.name)
        self.consumed = self.commit.position
        return self.commit

    @property
    def is_completed(self) -> bool:
        """Could stop: if the output ended here, there would be an answer."""
        if self.commit is not None:
            return True
        return not self._closed and self._machine.fork().close() is not None

    @property
    def is_terminated(self) -> bool:
        """Has stopped: the answer is committed, or the output was closed."""
        return self.commit is not None or self._closed

    def fork(self) -> Committer:
        """An independent copy of the state (for beams, drafts and look-ahead)."""
        other = copy.copy(self)
        other._machine = self._machine.fork()
        return other


class ByteCommitter:
    """A committer for UTF-8 bytes that are cut anywhere.

    An incomplete character waits for its rest; invalid bytes read as U+FFFD. Positions count
    characters of the decoded text.
    """

    def __init__(self, committer: Committer) -> None:
        self.committer = committer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> Commit | None:
        """Read bytes; return the commit if the answer became final in them."""
        return self.committer.feed(self._decoder.decode(data))

    def close(self) -> Commit | None:
        """End of the output."""
        return self.committer.feed(self._decoder.decode(b"", final=True)) or self.committer.close()


class TokenCommitter:
    """A committer for token ids, decoded one by one as the engines do.

    `tokenizer`: a fast `transformers` tokenizer, or a `tokenizers.Tokenizer`. Ids whose text is not
    yet known (half a character) wait. `skip_ids` (end of sequence, say) are not read. Special
    tokens are text, so that think tags are seen.

    `tokens_kept` is, after a commit, how many ids to keep: those whose text begins before the
    commit's position.
    """

    def __init__(self, committer: Committer, tokenizer: Any, skip_ids: Iterable[int] = ()) -> None:
        from tokenizers.decoders import DecodeStream

        self.committer = committer
        self._tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self._stream = DecodeStream(skip_special_tokens=False)
        self._skip = frozenset(skip_ids)
        self._read = 0
        self._waiting = 0  # ids read whose text has not come yet
        self.tokens_kept: int | None = None

    def feed(self, ids: Iterable[int]) -> Commit | None:
        """Read token ids; return the commit if the answer became final in their text."""
        for token in ids:
            self._read += 1
            if token in self._skip:
                continue
            self._waiting += 1
            text = self._stream.step(self._tokenizer, token)
            if text is None:
                continue
            before = self.committer.consumed
            commit = self.committer.feed(text)
            if commit is not None:
                excluded = self._waiting if commit.position <= before else 0
                self.tokens_kept = self._read - excluded
                return commit
            self._waiting = 0
        return None

    def close(self) -> Commit | None:
        """End of the output."""
        commit = self.committer.close()
        if commit is not None:
            self.tokens_kept = self._read
        return commit
