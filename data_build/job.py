"""One question from prompt to labelled trace, as a generator of engine requests."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from data_build.config import DataSettings
from data_build.drive import Job
from data_build.engine import Completion, Request
from data_build.outputs import OutputReader, Parsed
from data_build.prompts import output_ids, prompt_ids
from data_build.questions import Question
from data_build.rows import Built, Cost, Probes, RowMaker, failed
from data_build.search import boundaries_to_probe, plan, spread

_NOTHING = Completion([], [], "stop")


@dataclass
class _Work:
    """One trace under way."""

    place: int
    question: Question
    prompt: list[int]
    full: Completion
    parsed: Parsed
    cost: Cost


@dataclass(frozen=True)
class TraceBuilder:
    """What all traces of a run share."""

    settings: DataSettings
    reader: OutputReader
    max_model_len: int

    def job(self, place: int, question: Question) -> Job[Built]:
        """Generate, probe and label one question; `place` is its index in the batch."""
        prompt = prompt_ids(self.reader.tokenizer, question, self.settings)
        work = _Work(place, question, prompt, _NOTHING, Parsed(0, 0), Cost())
        if question.output is not None:
            think = self.reader.think
            ids = output_ids(self.reader.tokenizer, think, prompt, question.output)
            work.full = Completion(ids, [], "stop")
        else:
            room = self.max_model_len - len(prompt)
            if room < 2:
                work.parsed = Parsed(0, 0, reason="too_long")
                return self._finish(work)
            [work.full] = yield [self._full_request(work, room)]
            work.cost.trace_prompt_tokens = len(prompt)
            work.cost.trace_cached_tokens = work.full.cached_tokens
            work.cost.trace_tokens = len(work.full.token_ids)
        if work.full.error is not None:
            work.parsed = Parsed(0, 0, reason="engine_error")
            return self._finish(work, error=work.full.error)
        work.parsed = self.reader.read(prompt, work.full, question.contract)
        if work.parsed.reason is not None:
            return self._finish(work)
        return (yield from self._probe(work))

    def _probe(self, work: _Work) -> Job[Built]:
        """Ask for trial answers until the search has what it needs, then for the spread."""
        parsed, settings = work.parsed, self.settings.probe
        ends = self.reader.think.end_ids
        prefix = [*work.prompt, *work.full.token_ids[: parsed.start]]
        thinking = work.full.token_ids[parsed.start : parsed.end]
        if len(prefix) + len(thinking) + len(ends) >= self.max_model_len:
            work.parsed = failed(parsed, "too_long")
            return self._finish(work)
        strategy = self.settings.strategy(work.question.split)
        grid = boundaries_to_probe(strategy, parsed.boundaries, settings)
        probes = Probes()
        searching = True
        while True:
            asked = plan(strategy, grid, probes.agrees, settings) if searching else []
            if searching and not asked:
                searching = False
                asked = spread(grid, probes.agrees, settings.spread)
            if not asked:
                break
            asked = sorted(asked, reverse=True)  # the longest prefix first: the others reuse it
            requests = [
                self._trial_request(work, k, [*prefix, *thinking[: parsed.boundaries[k]], *ends])
                for k in asked
            ]
            completions = yield requests
            for k, request, completion in zip(asked, requests, completions, strict=True):
                if completion.error is not None:
                    work.parsed = failed(parsed, "engine_error")
                    return self._finish(work, error=completion.error)
                self._take(work, probes, k, request, completion)
        count = len(parsed.boundaries)
        work.cost.no_reuse_tokens = (
            count * (len(prefix) + len(ends) + work.cost.probe_generated_tokens / work.cost.probes)
        ) + sum(parsed.boundaries)
        return self._finish(work, probes, strategy)

    def _take(
        self, work: _Work, probes: Probes, k: int, request: Request, completion: Completion
    ) -> None:
        """Read one trial answer."""
        contract = work.question.contract
        assert contract is not None  # the reader requires one
        answer = self.reader.answer(contract, completion)
        probes.answers[k] = answer
        probes.agrees[k] = contract.equal(answer.value, work.parsed.answer.value)
        work.cost.probes += 1
        work.cost.probe_prompt_tokens += len(request.prompt_ids)
        work.cost.probe_cached_tokens += completion.cached_tokens
        work.cost.probe_generated_tokens += len(completion.token_ids)

    def _full_request(self, work: _Work, room: int) -> Request:
        sampling = self.settings.sampling
        digest = hashlib.sha256(f"{self.settings.seed}:{work.question.id}".encode()).digest()
        return Request(
            key=f"{work.place}/full",
            prompt_ids=work.prompt,
            max_tokens=min(sampling.max_tokens, room),
            sampling=sampling.model_dump(exclude={"max_tokens"}),
            seed=int.from_bytes(digest[:4], "big"),
        )

    def _trial_request(self, work: _Work, k: int, ids: list[int]) -> Request:
        contract = work.question.contract
        assert contract is not None
        return Request(
            key=f"{work.place}/{k}",
            prompt_ids=ids,
            max_tokens=min(self.settings.probe.max_answer_tokens, self.max_model_len - len(ids)),
            contract=json.dumps(contract.spec(), sort_keys=True),
        )

    def _finish(
        self,
        work: _Work,
        probes: Probes | None = None,
        strategy: str | None = None,
        error: str | None = None,
    ) -> Built:
        maker = RowMaker(
            label=self.settings.label,
            search=self.settings.probe.search,
            require_correct=self.settings.require_correct,
            sampling=json.dumps(self.settings.sampling.model_dump(), sort_keys=True),
        )
        trace = maker.make(work.question, work.prompt, work.full, work.parsed, probes, strategy)
        return Built(work.place, trace, work.cost, work.parsed.several, error)
