"""The exit rule for one request, token by token, in plain Python: what `exit_step` must equal."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

from specexit.heads.signal import SignalHead, activate
from specexit.policy import ExitPolicy, ExitTracker
from specexit.split import StepSplitter
from specexit.think import ThinkFormat, last_index

Triple = tuple[float, float, float]


class World:
    """A deterministic "target": the natural next token and the projection z of every prefix.

    Both depend on the position and on how often the thinking was ended, so that an output after an
    exit differs from the one without it.
    """

    def __init__(self, seed: int, vocabulary: list[int], weights: list[float], head: SignalHead):
        self.seed, self.vocabulary, self.weights, self.head = seed, vocabulary, weights, head
        self._z: dict[tuple[int, int], torch.Tensor] = {}

    def next_token(self, position: int, closed: int) -> int:
        rng = random.Random(f"{self.seed}/{position}/{closed}/token")
        return rng.choices(self.vocabulary, self.weights)[0]

    def z(self, position: int, closed: int) -> torch.Tensor:
        key = (position, closed)
        if key not in self._z:
            g = torch.Generator().manual_seed(hash((self.seed, *key)) % 2**31)
            self._z[key] = torch.randn(self.head.rows, generator=g) * 2
        return self._z[key]


@dataclass
class Sequential:
    """Generates one request's tokens one by one and applies the policy after each."""

    world: World
    policy: ExitPolicy
    think: ThinkFormat
    splitter: StepSplitter
    prompt: list[int]
    forced: tuple[int, ...]
    open_prompt: bool = False
    ids: list[int] = field(default_factory=list)
    closed: int = 0
    injected: list[int] = field(default_factory=list)
    natural: list[int] = field(default_factory=list)
    margin: float = 1e9
    raw: list[Triple] = field(default_factory=list)
    smoothed: list[Triple] = field(default_factory=list)
    smoothed_at: dict[int, Triple] = field(default_factory=dict)
    tokens_at: dict[int, int] = field(default_factory=dict)

    def run(self, outputs: int) -> list[int]:
        self.ids = list(self.prompt)
        self.thinking = self.policy.enabled and self.think.is_thinking(self.prompt)
        self.tracker = ExitTracker(self.policy)
        self.state = self.world.head.init_state(1)
        queue: list[int] = []
        for _ in range(outputs):
            following = self.world.next_token(len(self.ids), self.closed)
            end = self._consume(following)
            if queue:
                following = queue.pop(0)
            elif end:
                begun = self._begun()
                queue = list(self.forced[begun:])
                following = queue.pop(0)
                at = len(self.ids) - len(self.prompt) - begun
                self.injected.append(at)
                self.smoothed_at[at] = self.smoothed[-1]
                self.tokens_at[at] = self.tracker.tokens - begun
                self.closed += 1
                self.thinking = False
            self.ids.append(following)
        return self.ids[len(self.prompt) :]

    def _consume(self, following: int) -> bool:
        """Take the last id as an input; True if the thinking must end after it."""
        x, generated = self.ids[-1], len(self.ids) > len(self.prompt)
        if not generated:
            if self.thinking and self.open_prompt:
                self._advance(x, following)
            return False
        if not self.thinking:
            allowed = self.policy.enabled and (self.policy.reenter or not self.closed)
            if allowed and self._ends_with(self.think.start_ids):
                self.thinking = True
                self.tracker.boundary = self.tracker.streak = 0
                self.tracker.smoothed = None
                self.state = self.world.head.init_state(1)
            return False
        if self._ends_with(self.think.end_ids):
            self.thinking = False
            first = len(self.ids) - len(self.think.end_ids) - len(self.prompt)
            self.natural.append(first)
            return False
        end = self._advance(x, following)
        comes_by_itself = self.think.end_ids == (following,)
        return end and not comes_by_itself

    def _advance(self, x: int, following: int) -> bool:
        is_boundary = bool(
            self.splitter.mask(
                torch.tensor([x]), torch.tensor([self.ids[-2]]), torch.tensor([following])
            )[0]
        )
        z = self.world.z(len(self.ids) - 1, self.closed)
        self.state, logits = self.world.head.step(self.state, z[None], torch.tensor([is_boundary]))
        c, p, r = activate(logits)[0].tolist()
        end = self.tracker.update((c, p, r), is_boundary)
        self.raw.append((c, p, r))
        assert self.tracker.smoothed is not None
        self.smoothed.append(self.tracker.smoothed)
        if is_boundary:
            t = self.policy.thresholds
            for value, limit in zip(
                self.tracker.smoothed, (t.confidence, t.progress, t.remain), strict=True
            ):
                self.margin = min(self.margin, abs(value - limit) / max(limit, 1e-3))
        return end

    def _ends_with(self, pattern: tuple[int, ...]) -> bool:
        return bool(pattern) and tuple(self.ids[-len(pattern) :]) == pattern

    def _begun(self) -> int:
        for length in range(len(self.think.end_ids) - 1, 0, -1):
            if self._ends_with(self.think.end_ids[:length]):
                return length
        return 0


def opening(prompt: list[int], think: ThinkFormat) -> bool:
    """Whether the prompt's last token is a thinking token (here: any token after the tag)."""
    if not think.is_thinking(prompt):
        return False
    return len(prompt) > last_index(prompt, think.start_ids) + len(think.start_ids)
