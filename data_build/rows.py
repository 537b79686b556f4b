"""A finished trace as a row of the dataset, with what it cost."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace

from data_build.answers import Answer
from data_build.config import Label
from data_build.engine import Completion
from data_build.label import Labels, make_labels
from data_build.outputs import Parsed
from data_build.questions import Question
from data_build.search import is_monotone, sufficient
from specexit.contracts import Contract
from specexit.dataset import Trace


@dataclass
class Cost:
    """Tokens of one trace, or of many (they add)."""

    trace_tokens: int = 0
    """Tokens of the full outputs."""
    trace_prompt_tokens: int = 0
    """Tokens of their prompts."""
    trace_cached_tokens: int = 0
    """Of these, found in the prefix cache."""
    probes: int = 0
    """Trial answers."""
    probe_prompt_tokens: int = 0
    """Tokens of their prefixes."""
    probe_cached_tokens: int = 0
    """Of these, found in the prefix cache."""
    probe_generated_tokens: int = 0
    """Tokens of the trial answers, as generated."""
    no_reuse_tokens: float = 0.0
    """What probing every boundary would compute without prefix reuse: all prefixes, and trial
    answers of this trace's mean length."""

    @property
    def probe_tokens_computed(self) -> int:
        """Prefill that was not cached, and generated tokens."""
        return self.probe_prompt_tokens - self.probe_cached_tokens + self.probe_generated_tokens

    def add(self, other: Cost) -> None:
        """Add another cost to this one."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class Probes:
    """Trial answers of one trace, by boundary."""

    answers: dict[int, Answer] = field(default_factory=dict)
    agrees: dict[int, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Built:
    """A finished trace: its place in the batch, the row, its cost, what was odd about it."""

    place: int
    trace: Trace
    cost: Cost
    several_thinks: int = 0
    error: str | None = None


@dataclass(frozen=True)
class RowMaker:
    """What all rows of a run share."""

    label: Label = field(default_factory=Label)
    search: str = "stable"
    """Rule for k* where every boundary was probed."""
    require_correct: bool = False
    sampling: str | None = None
    """JSON of the sampling parameters."""

    def make(
        self,
        question: Question,
        prompt: list[int],
        full: Completion,
        parsed: Parsed,
        probes: Probes | None = None,
        strategy: str | None = None,
    ) -> Trace:
        """The row; without `probes` it only has what the output itself tells."""
        contract, answer = question.contract, parsed.answer
        known = probes or Probes()
        rule = self.search if strategy == "all" else strategy
        k_star = sufficient(known.agrees, "first" if rule == "first" else "stable")
        t_star = None if k_star is None else parsed.boundaries[k_star]
        correct = score(contract, answer, question.gold)
        reason = self._reason(parsed, probes, k_star, correct)
        answer_logprob = answer.mean_logprob if full.logprobs else None
        token_logprobs = full.logprobs[parsed.start : parsed.end]
        labels = Labels([], [], [])
        if t_star is not None:
            labels = make_labels(
                self.label,
                tokens=parsed.end - parsed.start,
                boundaries=parsed.boundaries,
                t_star=t_star,
                trial_logprob={k: a.mean_logprob for k, a in known.answers.items()},
                agrees=known.agrees,
                answer_logprob=answer_logprob,
                token_logprobs=token_logprobs,
            )
        if strategy == "bisect" and not is_monotone(known.agrees):
            strategy = "bisect, fell back to stable"
        places = range(len(parsed.boundaries))
        trials = [known.answers.get(k) for k in places]
        return Trace(
            id=question.id,
            question=question.question,
            gold=question.gold,
            contract=json.dumps(None if contract is None else contract.spec(), sort_keys=True),
            split=question.split,
            prompt_ids=prompt,
            output_ids=full.token_ids,
            think_start=parsed.start,
            think_end=parsed.end,
            token_logprobs=token_logprobs,
            boundaries=parsed.boundaries,
            probed=[trial is not None for trial in trials],
            trial_answers=[None if trial is None else trial.json for trial in trials],
            trial_agrees=[known.agrees.get(k, False) for k in places],
            trial_correct=[
                None if trial is None else score(contract, trial, question.gold) for trial in trials
            ],
            trial_logprob=[0.0 if trial is None else trial.mean_logprob for trial in trials],
            trial_tokens=[0 if trial is None else trial.tokens for trial in trials],
            answer=answer.json,
            correct=correct,
            k_star=k_star,
            t_star=t_star,
            confidence=labels.confidence,
            progress=labels.progress,
            remain=labels.remain,
            keep=reason is None,
            drop_reason=reason,
            meta=json.dumps(question.meta, sort_keys=True, ensure_ascii=False, default=str),
            answer_logprob=answer_logprob,
            answer_tokens=answer.tokens,
            search=strategy,
            sampling=None if question.output is not None else self.sampling,
        )

    def _reason(
        self, parsed: Parsed, probes: Probes | None, k_star: int | None, correct: bool | None
    ) -> str | None:
        if parsed.reason is not None:
            return parsed.reason
        if probes is None:
            return "not_probed"
        if k_star is None:
            return "unstable_end" if any(probes.agrees.values()) else "never_agrees"
        return "wrong_answer" if self.require_correct and not correct else None


def failed(parsed: Parsed, reason: str) -> Parsed:
    """The same output, unusable for a reason found later."""
    return replace(parsed, reason=reason)


def score(contract: Contract | None, answer: Answer, gold: str | None) -> bool | None:
    """Whether an answer is right; None where there is no gold or no contract."""
    if gold is None or contract is None:
        return None
    return answer.value is not None and bool(contract.score(answer.value, gold))
