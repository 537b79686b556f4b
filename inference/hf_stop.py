"""Contracts for transformers' `generate`: a stopping criterion, and a streamer.

stop = ContractStoppingCriteria("boxed_integer", tokenizer, inputs["input_ids"].shape[1])
model.generate(**inputs, stopping_criteria=[stop])
stop.texts                            # one a row, each cut where its answer was final
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from inference.answer_watch import watch_answer
from specexit.committer import Commit
from specexit.contracts import Contract, contract
from specexit.think import ThinkFormat

_CONTEXT = 6  # prompt tokens that decide how the first output token is written (spaces)


class TokenText:
    """Text of a token stream, piece by piece; incomplete characters wait for their rest."""

    def __init__(self, tokenizer: Any, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt_ids[-_CONTEXT:])
        self._from, self._read = 0, len(self._ids)

    def add(self, token_id: int) -> str:
        """The text that this token completes."""
        self._ids.append(token_id)
        known = self._decode(self._ids[self._from : self._read])
        text = self._decode(self._ids[self._from :])
        if len(text) <= len(known) or text.endswith("\ufffd"):
            return ""
        self._from, self._read = self._read, len(self._ids)
        return text[len(known) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


class AnswerFollower:
    """One output: its text, cut where the contract was satisfied.

    Attributes:
        text: visible and thinking text so far, cut at the commit.
        tokens: tokens read up to the deciding one.
        commit: the final answer, once there is one.
    """

    def __init__(
        self,
        wanted: Contract | None,
        tokenizer: Any,
        prompt_ids: Sequence[int],
        think: ThinkFormat | None = None,
    ) -> None:
        self._text = TokenText(tokenizer, prompt_ids)
        self._watch = None if wanted is None else watch_answer(wanted, tokenizer, prompt_ids, think)
        self.text = ""
        self.tokens = 0
        self.commit: Commit | None = None

    def feed(self, token_id: int) -> str:
        """Read a token; return the text that it adds. After the commit nothing is added."""
        if self.commit is not None:
            return ""
        self.tokens += 1
        piece = self._text.add(token_id)
        cut = None if self._watch is None else self._watch.feed(token_id, piece)
        if cut is not None:
            self.commit = cut.commit
            self.text = (self.text + piece)[: len(self.text) + cut.keep]
            return piece[: max(cut.keep, 0)]
        self.text += piece
        return piece

    def close(self) -> Commit | None:
        """End of the output: accept an answer that only lacked a terminator."""
        if self.commit is None and self._watch is not None:
            self.commit = self._watch.close()
        return self.commit


class ContractStoppingCriteria(StoppingCriteria):
    """Stops each row of a batch when its answer satisfies the contract.

    `generate` pads the rows that have stopped; `texts` and `tokens` leave the padding out. Beam
    search reorders rows and is refused.

    Args:
        contract_: name, dictionary, JSON or `Contract`.
        tokenizer: the model's.
        prompt_length: columns of `input_ids` before generation (padding included).
        eos_token_ids: ids that end a row; by default the tokenizer's.
    """

    def __init__(
        self,
        contract_: Contract | str | dict[str, Any],
        tokenizer: Any,
        prompt_length: int,
        *,
        eos_token_ids: Sequence[int] | None = None,
    ) -> None:
        self._contract = contract(contract_)
        self._tokenizer = tokenizer
        self._seen = prompt_length
        self._last: Tensor | None = None
        self._eos = set(eos_token_ids or [tokenizer.eos_token_id])
        self.rows: list[AnswerFollower] = []
        self._done: list[bool] = []

    @property
    def texts(self) -> list[str]:
        """Text of each row, cut at its commit."""
        return [row.text for row in self.rows]

    @property
    def answers(self) -> list[Any]:
        """Committed answer of each row, None without one."""
        return [None if row.commit is None else row.commit.answer for row in self.rows]

    @property
    def tokens(self) -> list[int]:
        """Generated tokens of each row, up to the deciding one."""
        return [row.tokens for row in self.rows]

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """`input_ids [B, T]` -> `[B] bool`, rows that have stopped."""
        if not self.rows:
            prompts = input_ids[:, : self._seen].tolist()
            self.rows = [AnswerFollower(self._contract, self._tokenizer, p) for p in prompts]
            self._done = [False] * len(prompts)
        elif self._last is not None and not torch.equal(input_ids[:, self._seen - 1], self._last):
            raise ValueError(
                "generate reordered its rows (beam search?); a contract needs num_beams=1"
            )
        for i, new in enumerate(input_ids[:, self._seen :].tolist()):
            for token_id in new:
                if not self._done[i]:
                    self._feed(i, token_id)
        self._seen = input_ids.shape[1]
        self._last = input_ids[:, -1].clone()
        return torch.tensor(self._done, device=input_ids.device)

    def _feed(self, i: int, token_id: int) -> None:
        row = self.rows[i]
        if token_id in self._eos:
            row.close()
            self._done[i] = True
            return
        row.feed(token_id)
        self._done[i] = row.commit is not None


class ContractStreamer(BaseStreamer):
    """Hands on the text of a one-row `generate` as it comes, and none after the commit.

    A streamer cannot stop `generate`: give a `ContractStoppingCriteria` too.

    Args:
        write: called with each piece of text.
    """

    def __init__(
        self,
        contract_: Contract | str | dict[str, Any],
        tokenizer: Any,
        write: Callable[[str], None],
    ) -> None:
        self._contract = contract(contract_)
        self._tokenizer = tokenizer
        self._write = write
        self.follower: AnswerFollower | None = None

    def put(self, value: Tensor) -> None:
        """The prompt `[1, T]` first, then new ids `[n]` or `[1, n]`."""
        ids = value.reshape(-1).tolist()
        if self.follower is None:
            if value.dim() > 1 and value.shape[0] > 1:
                raise ValueError(f"a streamer follows one row, generate has {value.shape[0]}")
            self.follower = AnswerFollower(self._contract, self._tokenizer, ids)
            return
        for token_id in ids:
            piece = self.follower.feed(token_id)
            if piece:
                self._write(piece)

    def end(self) -> None:
        """End of the output."""
        if self.follower is not None:
            self.follower.close()
