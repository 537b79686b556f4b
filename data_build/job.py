"""One question from prompt to labelled trace, as a generator of engine requests."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from data_build.answers import Answer
from data_build.config import DataSettings
from data_build.drive import Job
from data_build.engine import Completion, Request
from data_build.label import Labels, make_labels
from data_build.outputs import OutputReader, Parsed
from data_build.questions import Question
from data_build.search import is_monotone, plan, spread, sufficient, thin
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
class Built:
    """A finished trace: its place in the batch, the row, its cost, what was odd about it."""

    place: int
    trace: Trace
    cost: Cost
    several_thinks: int = 0
    error: str | None = None


@dataclass
class _Probes:
    """Trial answers of one trace so far."""

    answers: dict[int, Answer] = field(default_factory=dict)
    agrees: dict[int, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class TraceBuilder:
    """What all traces of a run share."""

    settings: DataSettings
    reader: OutputReader
    max_model_len: int
    probing: bool = True
    """Off: only generate (or take the imported output) and parse."""

    def prompt_ids(self, question: Question) -> list[int]:
        """The chat template's prompt as token ids."""
        tokenizer = self.reader.tokenizer
        text = tokenizer.apply_chat_template(
            question.messages,
            tokenize=False,
            add_generation_prompt=True,
            **self.settings.chat_template_kwargs,
        )
        return list(tokenizer.encode(text, add_special_tokens=False))

    def job(self, place: int, question: Question) -> Job[Built]:
        """Generate, probe and label one question; `place` is its index in the batch."""
        cost = Cost()
        prompt = self.prompt_ids(question)
        if question.output is not None:
            full = Completion(self._imported_ids(prompt, question.output), [], "stop")
        else:
            room = self.max_model_len - len(prompt)
            if room < 2:
                return self._row(
                    place, question, prompt, _NOTHING, Parsed(0, 0, [], reason="too_long"), cost
                )
            [full] = yield [self._full_request(place, question, prompt, room)]
            cost.trace_prompt_tokens = len(prompt)
            cost.trace_cached_tokens = full.cached_tokens
            cost.trace_tokens = len(full.token_ids)
        if full.error is not None:
            parsed = Parsed(0, 0, reason="engine_error")
            return self._row(place, question, prompt, full, parsed, cost)
        parsed = self.reader.read(prompt, full, question.contract)
        if parsed.reason is not None or not self.probing:
            return self._row(place, question, prompt, full, parsed, cost)
        return (yield from self._probe(place, question, prompt, full, parsed, cost))

    def _probe(
        self,
        place: int,
        question: Question,
        prompt: list[int],
        full: Completion,
        parsed: Parsed,
        cost: Cost,
    ) -> Job[Built]:
        settings = self.settings.probe
        strategy = self.settings.strategy(question.split)
        prefix = [*prompt, *full.token_ids[: parsed.start]]
        thinking = full.token_ids[parsed.start : parsed.end]
        longest = len(prefix) + len(thinking) + len(self.reader.think.end_ids)
        if longest >= self.max_model_len:
            reason = Parsed(parsed.start, parsed.end, parsed.boundaries, parsed.answer, "too_long")
            return self._row(place, question, prompt, full, reason, cost)
        grid = thin(parsed.boundaries, settings.every, settings.min_gap_tokens)
        probes = _Probes()
        spread_done = False
        while True:
            asked = plan(strategy, grid, probes.agrees, settings)
            if not asked and not spread_done:
                spread_done = True
                asked = spread(grid, probes.agrees, settings.spread)
            if not asked:
                break
            asked = sorted(asked, reverse=True)  # the longest prefix first: the others reuse it
            requests = [
                self._trial_request(place, question, prefix, thinking, parsed.boundaries[k], k)
                for k in asked
            ]
            completions = yield requests
            for k, request, completion in zip(asked, requests, completions, strict=True):
                if completion.error is not None:
                    failed = Parsed(
                        parsed.start, parsed.end, parsed.boundaries, parsed.answer, "engine_error"
                    )
                    return self._row(
                        place, question, prompt, full, failed, cost, error=completion.error
                    )
                answer = self.reader.answer(question.contract, completion)
                probes.answers[k] = answer
                probes.agrees[k] = question.contract.equal(answer.value, parsed.answer.value)
                cost.probes += 1
                cost.probe_prompt_tokens += len(request.prompt_ids)
                cost.probe_cached_tokens += completion.cached_tokens
                cost.probe_generated_tokens += len(completion.token_ids)
        ends = len(self.reader.think.end_ids)
        cost.no_reuse_tokens = sum(len(prefix) + b + ends for b in parsed.boundaries)
        cost.no_reuse_tokens += (
            len(parsed.boundaries) * cost.probe_generated_tokens / max(1, cost.probes)
        )
        return self._row(place, question, prompt, full, parsed, cost, probes, strategy)

    def _full_request(
        self, place: int, question: Question, prompt: list[int], room: int
    ) -> Request:
        sampling = self.settings.sampling
        seed = int.from_bytes(
            hashlib.sha256(f"{self.settings.seed}:{question.id}".encode()).digest()[:4], "big"
        )
        return Request(
            key=f"{place}/full",
            prompt_ids=prompt,
            max_tokens=min(sampling.max_tokens, room),
            sampling=sampling.model_dump(exclude={"max_tokens"}),
            seed=seed,
        )

    def _trial_request(
        self,
        place: int,
        question: Question,
        prefix: list[int],
        thinking: list[int],
        boundary: int,
        k: int,
    ) -> Request:
        ids = [*prefix, *thinking[:boundary], *self.reader.think.end_ids]
        return Request(
            key=f"{place}/{k}",
            prompt_ids=ids,
            max_tokens=min(self.settings.probe.max_answer_tokens, self.max_model_len - len(ids)),
            contract=json.dumps(question.contract.spec(), sort_keys=True),
        )

    def _imported_ids(self, prompt: list[int], output: str) -> list[int]:
        """Ids of a recorded output, with the think start where the record left it out.

        Chat templates may open the thinking, and servers may cut the tag off, so a record may
        hold the opening tag, or only the closing one.
        """
        think = self.reader.think
        ids = list(self.reader.tokenizer.encode(output, add_special_tokens=False))
        opened = list(think.start_ids)
        begins_open = bool(opened) and ids[: len(opened)] == opened
        if think.is_thinking(prompt):
            return ids[len(opened) :] if begins_open else ids
        span = think.locate(prompt, ids)
        if span is None and think.locate([*prompt, *opened], ids) is not None:
            closed = think.locate([*prompt, *opened], ids)
            return [*opened, *ids] if closed is not None and closed.end is not None else ids
        return ids

    def _row(
        self,
        place: int,
        question: Question,
        prompt: list[int],
        full: Completion,
        parsed: Parsed,
        cost: Cost,
        probes: _Probes | None = None,
        strategy: str | None = None,
        error: str | None = None,
    ) -> Built:
        """Assemble the row."""
        contract, answer = question.contract, parsed.answer
        correct = _score(contract, answer.value, question.gold)
        known = probes or _Probes()
        rule = strategy if strategy != "all" else self.settings.probe.search
        k_star = sufficient(known.agrees, "first" if rule == "first" else "stable")
        reason = parsed.reason
        if reason is None and probes is None:
            reason = "not_probed"
        elif reason is None and k_star is None:
            reason = "unstable_end" if any(known.agrees.values()) else "never_agrees"
        elif reason is None and self.settings.require_correct and not correct:
            reason = "wrong_answer"
        t_star = None if k_star is None else parsed.boundaries[k_star]
        tokens = parsed.end - parsed.start
        token_logprobs = full.logprobs[parsed.start : parsed.end]
        labels = Labels([], [], [])
        if t_star is not None:
            labels = make_labels(
                self.settings.label,
                tokens=tokens,
                boundaries=parsed.boundaries,
                t_star=t_star,
                trial_logprob={k: a.mean_logprob for k, a in known.answers.items()},
                agrees=known.agrees,
                answer_logprob=answer.mean_logprob if full.logprobs else None,
                token_logprobs=token_logprobs,
            )
        all_k = range(len(parsed.boundaries))
        found = [known.answers.get(k) for k in all_k]
        if strategy == "bisect" and not is_monotone(known.agrees):
            strategy = "bisect, fell back to stable"
        trace = Trace(
            id=question.id,
            question=question.question,
            gold=question.gold,
            contract=json.dumps(contract.spec(), sort_keys=True),
            split=question.split,
            prompt_ids=prompt,
            output_ids=full.token_ids,
            think_start=parsed.start,
            think_end=parsed.end,
            token_logprobs=token_logprobs,
            boundaries=parsed.boundaries,
            probed=[a is not None for a in found],
            trial_answers=[None if a is None else a.json for a in found],
            trial_agrees=[known.agrees.get(k, False) for k in all_k],
            trial_correct=[
                None if a is None else _score(contract, a.value, question.gold) for a in found
            ],
            trial_logprob=[0.0 if a is None else a.mean_logprob for a in found],
            trial_tokens=[0 if a is None else a.tokens for a in found],
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
            answer_logprob=answer.mean_logprob if full.logprobs else None,
            answer_tokens=answer.tokens,
            search=strategy,
            sampling=None if question.output is not None else self._sampling_json(),
        )
        return Built(place, trace, cost, parsed.several, error or full.error)

    def _sampling_json(self) -> str:
        return json.dumps(self.settings.sampling.model_dump(), sort_keys=True)


_NOTHING = Completion([], [], "stop")


def _score(contract: Any, value: Any, gold: str | None) -> bool | None:
    """Whether an answer is right; None where there is no gold."""
    if gold is None:
        return None
    return value is not None and bool(contract.score(value, gold))
