"""Run many jobs over one engine: each job is a generator that asks for completions."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from data_build.engine import Completion, Engine, Request

R = TypeVar("R")
Job = Generator[list[Request], list[Completion], R]
"""Yields requests, is sent their completions in the same order, returns its result."""


def drive(engine: Engine, jobs: Iterable[Job[R]], finished: Callable[[R], None]) -> None:
    """Advance all jobs until they return; `finished` gets each result as it comes.

    New jobs start only while the engine has room, so the requests of started jobs (the probes of
    a trace that was just generated) never queue behind those of new ones: their prefix is still
    in the KV cache. The order depends on the engine's answers alone.
    """
    waiting: dict[str, tuple[_Running[R], int]] = {}
    source = iter(jobs)
    exhausted = False
    while True:
        while not exhausted and len(waiting) < engine.capacity:
            job = next(source, None)
            if job is None:
                exhausted = True
            else:
                _advance(_Running(job), None, engine, waiting, finished)
        if not waiting:
            return
        completions = engine.collect()
        if not completions:
            raise AssertionError(f"the engine lost {len(waiting)} requests")
        for key, completion in completions:
            running, place = waiting.pop(key)
            running.results[place] = completion
            if len(running.results) == running.expected:
                _advance(running, running.in_order(), engine, waiting, finished)


@dataclass
class _Running(Generic[R]):
    job: Job[R]
    expected: int = 0
    results: dict[int, Completion] = field(default_factory=dict)

    def in_order(self) -> list[Completion]:
        ordered = [self.results[i] for i in range(self.expected)]
        self.results = {}
        return ordered


def _advance(
    running: _Running[R],
    completions: list[Completion] | None,
    engine: Engine,
    waiting: dict[str, tuple[_Running[R], int]],
    finished: Callable[[R], None],
) -> None:
    """Send completions to a job and submit what it asks for next."""
    try:
        requests = next(running.job) if completions is None else running.job.send(completions)
        while not requests:
            requests = running.job.send([])
    except StopIteration as stop:
        finished(stop.value)
        return
    running.expected = len(requests)
    for place, request in enumerate(requests):
        if request.key in waiting:
            raise AssertionError(f"request key {request.key!r} is in use")
        waiting[request.key] = (running, place)
        engine.submit(request)
