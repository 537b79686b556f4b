"""The exit rule along one request's tokens, in plain Python: what `inference/hf.py` decides with.

It reads the inputs of verification steps one by one, as `inference/vllm/exit_step.py` does for a
whole batch, and shares no code with it beyond the policy and the head, so each checks the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specexit.errors import ConfigError
from specexit.heads.signal import SignalHead, SignalState, activate
from specexit.policy import ExitPolicy, ExitTracker, Triple
from specexit.split import StepSplitter
from specexit.think import ThinkFormat, last_index


@dataclass(frozen=True)
class ExitRecord:
    """How a request's thinking ended.

    Attributes:
        kind: `injected` by the policy, `natural`, or `none` (not closed, or never opened).
        position: index among the output tokens of the think end's first id; None for `none`.
        tokens: thinking tokens.
        boundary: number of the last boundary.
        smoothed: signals there, None if no signals were computed.
    """

    kind: str
    position: int | None
    tokens: int
    boundary: int
    smoothed: Triple | None


@dataclass
class ExitFollower:
    """State of one request.

    Attributes:
        policy: with `smoothing.unit: token`.
        head: the signal head, on the CPU or wherever the features are.
        think: think format.
        splitter: in the policy's mode.
        forced: ids to write when the thinking ends: think end and suffix.
        is_blank: `[V] bool`, ids whose text is white space.
        signals: raw signals of every thinking token so far (those in the prompt included).
    """

    policy: ExitPolicy
    head: SignalHead
    think: ThinkFormat
    splitter: StepSplitter
    forced: tuple[int, ...]
    is_blank: Tensor
    signals: list[Triple] = field(default_factory=list)
    record: ExitRecord | None = None

    def __post_init__(self) -> None:
        if self.policy.smoothing.unit != "token" or self.policy.preset != "default":
            raise ConfigError(
                f"policy.smoothing.unit: {self.policy.smoothing.unit!r} depends on the engine's "
                "steps; the reference decoder has 'token'"
            )
        self.thinking = False
        self._closed = False
        self._history: list[int] = []
        self._state: SignalState = self.head.init_state(1)
        self._tracker = ExitTracker(self.policy)

    def start(self, prompt_ids: Sequence[int], features: Tensor, first_output: int) -> None:
        """Read the prompt; `features [n, F]` are the head's inputs of its tokens.

        A thinking that the prompt opened goes on in the output. What the prompt already holds of
        it (after white space, which belongs to the opening) moves the head's state, but an exit
        falls on generated tokens only.
        """
        self.thinking = self.policy.enabled and self.think.is_thinking(prompt_ids)
        self._history = list(prompt_ids)
        if not self.thinking:
            return
        begin = last_index(prompt_ids, self.think.start_ids) + len(self.think.start_ids)
        while begin < len(prompt_ids) and self.is_blank[prompt_ids[begin]]:
            begin += 1
        following = [*prompt_ids[1:], first_output]
        for i in range(begin, len(prompt_ids)):
            if i == len(prompt_ids) - 1:
                self._tracker.streak = 0  # boundaries of the past are no test
            self._advance(prompt_ids[i], prompt_ids[i - 1], features[i], following[i])

    def take(self, token: int, feature: Tensor, output: int, position: int) -> int:
        """Read one generated input token.

        Args:
            token: the input.
            feature: `[F]`, what the signal head reads at it.
            output: the token that the target chooses after it.
            position: the input's index among the outputs.

        Returns:
            How many ids of `forced` stand already (0 for a think end of one id) when the thinking
            must end right after the input, else -1.
        """
        if not self.policy.enabled:
            return -1
        if self.thinking:
            if self._completes(token, self.think.end_ids):
                before = len(self.think.end_ids) - 1  # they counted as thinking until now
                self._end("natural", position - before, before)
                self.thinking = False
                self._history.append(token)
                return -1
            ends = self._advance(token, self._history[-1], feature, output)
            self._history.append(token)
            natural = len(self.think.end_ids) == 1 and output == self.think.end_ids[0]
            if not ends or natural:
                return -1
            begun = self._begun()
            self._end("injected", position + 1 - begun, begun)
            self.thinking, self._closed = False, True
            return begun
        may_open = self.policy.reenter or not self._closed
        if may_open and self._completes(token, self.think.start_ids):
            self.thinking = True
            self._state = self.head.init_state(1)
            tokens = self._tracker.tokens  # counted over all thinkings of the request
            self._tracker = ExitTracker(self.policy, tokens=tokens)
        self._history.append(token)
        return -1

    def finish(self) -> ExitRecord:
        """The record of the first thinking that ended, or of one that did not."""
        if self.record is None:
            self._end("none", None, 0)
        assert self.record is not None
        return self.record

    def _advance(self, token: int, previous: int, feature: Tensor, following: int) -> bool:
        """Take a thinking token; True if the thinking must end after it."""
        ids = torch.tensor([token, previous, following])
        boundary = bool(self.splitter.mask(*ids))
        with torch.inference_mode():
            z = self.head.project(feature[None])
            at = torch.tensor([boundary], device=z.device)
            self._state, logits = self.head.step(self._state, z, at)
            c, p, r = activate(logits)[0].tolist()
        self.signals.append((c, p, r))
        return self._tracker.update((c, p, r), boundary)

    def _end(self, kind: str, position: int | None, tag: int) -> None:
        """Note the first end; `tag` ids of the think end were taken for thinking tokens."""
        if self.record is None:
            t = self._tracker
            self.record = ExitRecord(kind, position, t.tokens - tag, t.boundary, t.smoothed)

    def _completes(self, token: int, tag: tuple[int, ...]) -> bool:
        if not tag or token != tag[-1]:
            return False
        n = len(tag)
        return (*self._history[len(self._history) - n + 1 :], token) == tag

    def _begun(self) -> int:
        """How many ids of a think end of several ids the model has already written."""
        end = self.think.end_ids
        for n in range(len(end) - 1, 0, -1):
            if tuple(self._history[-n:]) == end[:n]:
                return n
        return 0
