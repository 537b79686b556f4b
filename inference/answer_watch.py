"""Follow one output token by token and say when its answer is final.

All engine adapters share it. Thinking is told from the answer by token ids (special tokens may
never appear in the text), the answer's text goes to a `Committer`. Tokenizers without think tags
are followed by text instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from specexit.committer import Commit, Committer
from specexit.contracts import Contract
from specexit.errors import ConfigError
from specexit.think import KNOWN_TAGS, ThinkFormat


@dataclass(frozen=True, slots=True)
class Cut:
    """The answer is final.

    `keep`: how many characters of the deciding token's text stay; negative where the cut lies in
    text that came before it (only while a think start of several tokens was possible).
    """

    commit: Commit
    keep: int


_CONFIGURED: WeakKeyDictionary[Any, ThinkFormat] = WeakKeyDictionary()


def set_think_format(tokenizer: Any, think: ThinkFormat) -> None:
    """Say how a tokenizer's model thinks where its vocabulary does not (a head's metadata does)."""
    _CONFIGURED[tokenizer] = think


def think_format(tokenizer: Any) -> ThinkFormat | None:
    """What `set_think_format` said, else the vocabulary's tags, None where it has none."""
    return _CONFIGURED.get(tokenizer) or _of_vocabulary(tokenizer)


@lru_cache(maxsize=8)  # it reads the whole vocabulary
def _of_vocabulary(tokenizer: Any) -> ThinkFormat | None:
    try:
        return ThinkFormat.from_tokenizer(tokenizer)
    except ConfigError:
        return None


def watch_answer(
    contract: Contract,
    tokenizer: Any,
    prompt_ids: Sequence[int] | None,
    think: ThinkFormat | None = None,
) -> AnswerWatch | TextWatch:
    """A watch for the output of one prompt.

    Args:
        contract: what ends the output.
        tokenizer: the engine's.
        prompt_ids: None where they are unknown (prompt embeddings): the output then counts as
            thinking until a think end.
        think: the think format; the tokenizer's own where None.
    """
    think = think or think_format(tokenizer)
    if think is None:
        prompt = tokenizer.decode(list(prompt_ids or ()))
        return TextWatch(contract, prompt)
    # Without a think start to look for, only a think end says that the answer begins.
    thinking = prompt_ids is None or not think.start_ids or think.is_thinking(prompt_ids)
    start_text = tokenizer.decode(list(think.start_ids)) if len(think.start_ids) > 1 else ""
    return AnswerWatch(contract, think, thinking, start_text)


class AnswerWatch:
    """Gate by token ids.

    While a think start of several tokens may be under way, the text of those tokens waits; it
    goes to the committer once they turn out to be something else.
    """

    __slots__ = ("_committer", "_held", "_matched", "_think", "holdback", "thinking")

    def __init__(
        self, contract: Contract, think: ThinkFormat, thinking: bool, start_text: str = ""
    ) -> None:
        self._committer = Committer(contract, thinking=False)
        self._think = think
        self._matched: list[int] = []  # the tail of the output that may become the next tag
        self._held: list[str] = []  # the text of those tokens
        self.thinking = thinking
        # Characters that a streaming front end must hold back, as a later cut may drop them.
        self.holdback = len(start_text)

    @property
    def commit(self) -> Commit | None:
        """The final answer, once there is one."""
        return self._committer.commit

    def feed(self, token_id: int, text: str) -> Cut | None:
        """Read one generated token and the text that came with it."""
        tag = self._think.end_ids if self.thinking else self._think.start_ids
        if not self._matched and (not tag or token_id != tag[0]):  # nearly every token
            return None if self.thinking else self._read(text, 0)
        self._matched.append(token_id)
        self._held.append(text)
        if tuple(self._matched) == tag:
            self.thinking = not self.thinking
            self._matched, self._held = [], []
            return None
        keep = _longest_prefix(self._matched, tag)
        freed = "".join(self._held[: len(self._held) - keep])
        behind = sum(map(len, self._held[:-1]))
        self._matched = self._matched[len(self._matched) - keep :]
        self._held = self._held[len(self._held) - keep :]
        return None if self.thinking else self._read(freed, behind)

    def _read(self, text: str, behind: int) -> Cut | None:
        """Feed visible text that began `behind` characters before the current token's."""
        if not text:
            return None
        start = self._committer.consumed
        commit = self._committer.feed(text)
        return None if commit is None else Cut(commit, commit.position - start - behind)

    def close(self) -> Commit | None:
        """End of the output: accept an answer that only lacked a terminator."""
        if not self.thinking and self._held and self.commit is None:
            self._committer.feed("".join(self._held))
        return self.commit or (None if self.thinking else self._committer.close())


class TextWatch:
    """Gate by text, for tokenizers whose vocabulary has no think tags (`<think>` in pieces)."""

    __slots__ = ("_committer", "holdback")

    def __init__(self, contract: Contract, prompt: str) -> None:
        start, end = KNOWN_TAGS[0]
        self._committer = Committer(contract, thinking=True, think_start=start, think_end=end)
        if prompt.rfind(start) <= prompt.rfind(end):  # not thinking: no tag, or the last is closed
            self._committer.feed(end)
        self.holdback = len(start) - 1

    @property
    def commit(self) -> Commit | None:
        """The final answer, once there is one."""
        return self._committer.commit

    def feed(self, token_id: int, text: str) -> Cut | None:
        """Read one generated token and the text that came with it."""
        start = self._committer.consumed
        commit = self._committer.feed(text) if text else None
        return None if commit is None else Cut(commit, commit.position - start)

    def close(self) -> Commit | None:
        """End of the output: accept an answer that only lacked a terminator."""
        return self.commit or self._committer.close()


def _longest_prefix(tail: list[int], tag: tuple[int, ...]) -> int:
    """Length of the longest proper prefix of `tag` that `tail` ends with."""
    for n in range(min(len(tail), len(tag) - 1), 0, -1):
        if tuple(tail[-n:]) == tag[:n]:
            return n
    return 0
