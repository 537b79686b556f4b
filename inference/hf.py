"""A reference decoder in plain transformers: speculative, greedy, one request, easy to read.

It yields the same tokens and the same exits as the vLLM worker (in fp32), and is the parity
partner of its tests. Use vLLM to serve.

    head = load_draft(HEAD, model, tokenizer)
    result = generate(model, head, prompt_ids, num_speculative_tokens=3, max_new_tokens=2048)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from inference.exit_follower import ExitFollower, ExitRecord
from inference.hf_stop import AnswerFollower
from inference.hf_target import Target
from specexit.checkpoint import HeadMetadata, check_target, load_signal_head, target_facts
from specexit.committer import Commit
from specexit.contracts import Contract, contract
from specexit.heads.cache import DraftCache
from specexit.heads.eagle3 import Eagle3Head
from specexit.heads.signal import SignalHead
from specexit.policy import ExitPolicy, Triple
from specexit.split import StepSplitter


@dataclass(frozen=True)
class Draft:
    """A head folder, loaded for one target."""

    eagle: Eagle3Head
    signals: SignalHead
    metadata: HeadMetadata
    splitter: StepSplitter
    is_blank: torch.Tensor
    tokenizer: Any


@dataclass(frozen=True)
class Result:
    """One generated output.

    Attributes:
        output_ids: generated tokens, up to and including the last one.
        text: decoded, cut where the contract was satisfied; without special tokens.
        exit: how the thinking ended.
        accepted: accepted drafts of every verification step.
        signals: raw (confidence, progress, remain) of every thinking token.
        finish_reason: `stop` (end of text or contract) or `length`.
        commit: the contract's answer, None without one.
    """

    output_ids: list[int]
    text: str
    exit: ExitRecord
    accepted: list[int]
    signals: list[Triple]
    finish_reason: str
    commit: Commit | None

    @property
    def acceptance_length(self) -> float:
        """Mean number of tokens a verification step yields."""
        return 1 + sum(self.accepted) / max(len(self.accepted), 1)


def load_draft(
    folder: str | Path, model: Any, tokenizer: Any, *, dtype: torch.dtype | None = None
) -> Draft:
    """Load a head for a target.

    Args:
        dtype: of the draft's parameters; by default the target's.

    Raises:
        CheckpointError: files are missing, or the head is for another target.
    """
    signals, metadata = load_signal_head(folder)
    check_target(metadata, target_facts(model.config.name_or_path, model.config))
    eagle = Eagle3Head.load(folder, dtype=dtype or model.dtype).to(model.device).eval()
    eagle.bind_embedding(model.get_input_embeddings().weight)
    size = max(metadata.target.vocab_size, len(tokenizer))
    texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
    splitter = StepSplitter.from_texts(texts, vocab_size=size)
    blank = torch.zeros(size, dtype=torch.bool)
    blank[[i for i, text in enumerate(texts) if text and not text.strip()]] = True
    return Draft(eagle, signals.to(model.device), metadata, splitter, blank, tokenizer)


def generate(
    model: Any,
    head: Draft,
    prompt_ids: Sequence[int],
    *,
    policy: ExitPolicy | None = None,
    num_speculative_tokens: int = 3,
    max_new_tokens: int = 1024,
    contract_: Contract | str | dict[str, Any] | None = None,
) -> Result:
    """Decode one prompt greedily.

    Args:
        policy: by default the head's own.
        num_speculative_tokens: K; 0 decodes without a draft.
        contract_: ends the output when its answer satisfies it.
    """
    policy = head.metadata.policy if policy is None else policy
    wanted = None if contract_ is None else contract(contract_)
    return _Run(model, head, prompt_ids, policy, num_speculative_tokens, wanted).run(max_new_tokens)


class _Run:
    """State of one request."""

    def __init__(
        self,
        model: Any,
        head: Draft,
        prompt_ids: Sequence[int],
        policy: ExitPolicy,
        k: int,
        wanted: Contract | None,
    ) -> None:
        self.head, self.k = head, k
        self.target = Target(model, head.eagle.config.aux_layer_ids)
        self.cache = DraftCache()
        self.prompt = list(prompt_ids)
        self.outputs: list[int] = []
        self.accepted: list[int] = []
        think = head.metadata.think
        suffix = policy.exit_suffix
        extra = head.tokenizer.encode(suffix, add_special_tokens=False) if suffix else []
        self.forced = (*think.end_ids, *extra)
        self.follower = ExitFollower(
            policy,
            head.signals,
            think,
            replace(head.splitter, mode=policy.step_split),
            self.forced,
            head.is_blank,
        )
        self.written = 0  # ids of `forced` in the output; 0 while the thinking was not ended
        self.answer = AnswerFollower(wanted, head.tokenizer, self.prompt, think)
        eos = model.generation_config.eos_token_id
        self.eos = set(eos if isinstance(eos, list) else [eos])

    def run(self, max_new_tokens: int) -> Result:
        logits, features = self.target.forward(self.prompt)
        first_id = int(logits[-1].argmax())
        self.follower.start(self.prompt, self.head.eagle.normalise(features), first_id)
        reason = self._append([first_id], max_new_tokens)
        first = 0  # text position of the first row of `features`
        while reason is None:
            drafts = self._draft(features, first)
            first = len(self.target)
            inputs = [self.outputs[-1], *drafts]
            logits, features = self.target.forward(inputs)
            chosen = logits.argmax(-1).tolist()
            a = 0
            while a < len(drafts) and drafts[a] == chosen[a]:
                a += 1
            room = max_new_tokens - len(self.outputs)
            chosen = self._until_eos(chosen[: min(a + 1, room)])
            chosen = self._end_thinking(inputs, features, chosen)
            self.accepted.append(len(chosen) - 1)
            features = features[: len(chosen)]
            self.target.truncate(first + len(chosen))
            reason = self._append(chosen, max_new_tokens)
        return Result(
            self.outputs,
            self.answer.text,
            self.follower.finish(),
            self.accepted,
            self.follower.signals,
            reason,
            self.answer.commit,
        )

    def _draft(self, features: torch.Tensor, first: int) -> list[int]:
        """K drafts after the last token; `features` are those of the text from `first` on."""
        if self.k == 0:
            return []
        text = self.prompt + self.outputs
        following = torch.tensor(text[first + 1 : first + len(features) + 1])
        proposal = self.head.eagle.propose(
            self.cache, features, following.to(features.device), self.k
        )
        return proposal.ids.tolist()

    def _until_eos(self, ids: list[int]) -> list[int]:
        """What follows the end of the text was accepted, but never happened."""
        at = next((i for i, token_id in enumerate(ids) if token_id in self.eos), len(ids))
        return ids[: at + 1]

    def _end_thinking(
        self, inputs: list[int], features: torch.Tensor, chosen: list[int]
    ) -> list[int]:
        """The step's outputs with an exit: cut at the boundary, the think end after it."""
        if 0 < self.written < len(self.forced):  # a think end or suffix goes on, one id a step
            self.written += 1
            normed = self.head.eagle.normalise(features[:1])
            self.follower.take(inputs[0], normed[0], chosen[0], len(self.outputs) - 1)
            return [self.forced[self.written - 1]]
        normed = self.head.eagle.normalise(features)
        for i, output in enumerate(chosen):
            position = len(self.outputs) - 1 + i
            begun = self.follower.take(inputs[i], normed[i], output, position)
            if begun >= 0:
                self.written = begun + 1
                return [*chosen[:i], self.forced[begun]]
        return chosen

    def _append(self, ids: list[int], max_new_tokens: int) -> str | None:
        """Add tokens one by one; the finish reason if one of them ends the output."""
        for token_id in ids:
            self.outputs.append(token_id)
            if token_id in self.eos:
                self.answer.close()
                return "stop"
            self.answer.feed(token_id)
            if self.answer.commit is not None:
                return "stop"
            if len(self.outputs) == max_new_tokens:
                return "length"
        return None
