"""The target behind OpenAI-compatible endpoints: one or many vLLM servers that return token ids.

`POST /completions` with the prompt as token ids, `return_token_ids` and `logprobs: 0`, so no text
is ever encoded again. All requests of a trace go to the same endpoint while it lives: that is
where the trace's KV cache is. Failures are retried with exponential backoff, on another endpoint
where there is one.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from data_build.config import Engine as EngineSettings
from data_build.engine import Completion, Request
from specexit.errors import ConfigError

logger = logging.getLogger(__name__)

MAX_WAIT_S = 60.0
_UNKNOWN_LENGTH = 1 << 30
_RETRY = frozenset({408, 409, 425, 429})  # and every 5xx


class _RetryableError(Exception):
    """This attempt failed; another may not. `wait` is what the server asked for, in seconds."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


class _RefusedError(Exception):
    """The endpoint refuses this very request; no retry."""


@dataclass
class _Endpoint:
    url: str
    in_flight: int = 0
    failures: int = 0
    down_until: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class OpenAiEngine:
    """Requests spread over endpoints by a pool of threads."""

    exact_replay = False

    def __init__(self, settings: EngineSettings) -> None:
        """Ask every endpoint what it serves.

        Raises:
            ConfigError: none answers, one does not serve `engine.model`, or a key is missing.
        """
        self._settings = settings
        key = os.environ.get(settings.api_key_env)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        total = settings.concurrency * len(settings.endpoints)
        limits = httpx.Limits(max_connections=total, max_keepalive_connections=total)
        timeout = httpx.Timeout(settings.timeout_s, connect=min(10.0, settings.timeout_s))
        self._client = httpx.Client(headers=headers, limits=limits, timeout=timeout)
        self._endpoints = [_Endpoint(url) for url in settings.endpoints]
        self.model, self.max_model_len = self._models()
        self.capacity = total
        self._pool = ThreadPoolExecutor(total, thread_name_prefix="endpoint")
        self._done: queue.SimpleQueue[tuple[str, Completion | ConfigError]] = queue.SimpleQueue()
        self._closing = threading.Event()

    def _models(self) -> tuple[str, int]:
        name, length, problems = self._settings.model, _UNKNOWN_LENGTH, []
        for endpoint in self._endpoints:
            try:
                served = self._served(endpoint)
            except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
                problems.append(f"{endpoint.url}: {error or type(error).__name__}")
                endpoint.down_until = time.monotonic() + self._settings.backoff_s
                continue
            if name is None and served:
                name = next(iter(served))
            if name not in served:
                raise ConfigError(
                    f"engine.endpoints: {endpoint.url} serves {', '.join(served) or 'nothing'}, "
                    f"not {name}; set engine.model"
                )
            length = min(length, int(served[name].get("max_model_len") or _UNKNOWN_LENGTH))
        if len(problems) == len(self._endpoints) or name is None:
            raise ConfigError("engine.endpoints: none answers: " + "; ".join(problems))
        for problem in problems:
            logger.warning("endpoint does not answer, going on without it: %s", problem)
        if self._settings.max_model_len is not None:
            length = min(length, self._settings.max_model_len)
        return name, length

    def _served(self, endpoint: _Endpoint) -> dict[str, Any]:
        """Models of an endpoint by name; a busy server gets a second and a third chance."""
        for attempt in range(3):
            try:
                response = self._client.get(f"{endpoint.url}/models")
                response.raise_for_status()
                return {m["id"]: m for m in response.json()["data"]}
            except httpx.HTTPError:
                if attempt == 2:
                    raise
                time.sleep(self._settings.backoff_s * 2**attempt)
        raise AssertionError("unreachable")

    # --- engine ----------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        self._pool.submit(self._work, request)

    def collect(self) -> list[tuple[str, Completion]]:
        results = [self._done.get()]
        while not self._done.empty():
            results.append(self._done.get())
        out = []
        for key, completion in results:
            if isinstance(completion, ConfigError):
                raise completion
            out.append((key, completion))
        return out

    def counters(self) -> dict[str, float]:
        """None: a server's totals count other clients too. Costs come from each response's `usage`
        (start `vllm serve` with --enable-prompt-tokens-details, or cached tokens stay unknown)."""
        return {}

    def forget(self) -> None:
        """Nothing: the servers' caches are their own."""

    def close(self) -> None:
        self._closing.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._client.close()

    # --- one request -----------------------------------------------------------------------

    def _work(self, request: Request) -> None:
        result: Completion | ConfigError
        try:
            result = self._with_retries(request)
        except ConfigError as error:
            result = error
        except Exception as error:  # a thread must never swallow a request
            logger.exception("request %s", request.key)
            result = _failed(repr(error))
        self._done.put((request.key, result))

    def _with_retries(self, request: Request) -> Completion:
        chooser = random.Random(request.key)  # jitter only
        last = "no attempt"
        for attempt in range(self._settings.retries + 1):
            endpoint = self._choose(request.key)
            try:
                completion = self._post(endpoint, request)
            except _RefusedError as error:
                return _failed(str(error))
            except _RetryableError as error:
                last = f"{endpoint.url}: {error}"
                wait = min(MAX_WAIT_S, self._settings.backoff_s * 2**attempt)
                wait = max(error.wait or 0.0, wait * (0.5 + chooser.random()))
                self._mark_down(endpoint, wait)
                if attempt == self._settings.retries or self._closing.is_set():
                    break
                logger.debug("%s, waiting %.1f s", last, wait)
                if not self._another_is_up():
                    self._closing.wait(wait)
            else:
                with endpoint.lock:
                    endpoint.failures, endpoint.down_until = 0, 0.0
                return completion
        return _failed(f"{last} (after {self._settings.retries + 1} attempts)")

    def _choose(self, key: str) -> _Endpoint:
        """The trace's own endpoint, or the least busy one that is up while that is down."""
        now = time.monotonic()
        trace = key.split("/", 1)[0].encode()
        own = self._endpoints[
            int.from_bytes(hashlib.blake2b(trace, digest_size=4).digest(), "big")
            % len(self._endpoints)
        ]
        if own.down_until <= now:
            return own
        up = [e for e in self._endpoints if e.down_until <= now]
        return min(up, key=lambda e: e.in_flight) if up else own

    def _another_is_up(self) -> bool:
        return any(e.down_until <= time.monotonic() for e in self._endpoints)

    def _mark_down(self, endpoint: _Endpoint, wait: float) -> None:
        with endpoint.lock:
            endpoint.failures += 1
            endpoint.down_until = time.monotonic() + wait

    def _post(self, endpoint: _Endpoint, request: Request) -> Completion:
        with endpoint.lock:
            endpoint.in_flight += 1
        try:
            response = self._client.post(f"{endpoint.url}/completions", json=self._body(request))
        except httpx.HTTPError as error:
            raise _RetryableError(f"{type(error).__name__}: {error}") from error
        finally:
            with endpoint.lock:
                endpoint.in_flight -= 1
        if response.status_code in (401, 403):
            raise ConfigError(
                f"engine.endpoints: {endpoint.url} refuses the key (HTTP {response.status_code}); "
                f"put a valid one into the environment variable {self._settings.api_key_env}"
            )
        if response.status_code == 404:
            raise ConfigError(f"engine.endpoints: {endpoint.url} has no /completions (HTTP 404)")
        if response.status_code in _RETRY or response.status_code >= 500:
            wait = response.headers.get("retry-after", "")
            raise _RetryableError(
                f"HTTP {response.status_code}", float(wait) if wait.isdigit() else None
            )
        if response.status_code != 200:
            raise _RefusedError(f"HTTP {response.status_code}: {response.text[:200]}")
        return self._read(endpoint, response)

    def _body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": request.prompt_ids,
            "max_tokens": request.max_tokens,
            "logprobs": 0,
            "return_token_ids": True,
            **(request.sampling or {"temperature": 0.0}),
        }
        if body.get("temperature", 1.0) > 0 and request.seed is not None:
            body["seed"] = request.seed
        if request.contract is not None and self._settings.send_contract:
            body["vllm_xargs"] = {"contract": request.contract}
        return body

    def _read(self, endpoint: _Endpoint, response: httpx.Response) -> Completion:
        try:
            body = response.json()
            choice = body["choices"][0]
            reason = choice["finish_reason"]
            cached = ((body.get("usage") or {}).get("prompt_tokens_details") or {}).get(
                "cached_tokens"
            )
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise _RetryableError(f"not a completion: {response.text[:80]!r}") from error
        if not isinstance(choice, dict) or reason not in ("stop", "length"):
            raise _RetryableError(f"finish_reason {reason!r}")
        ids = choice.get("token_ids")
        if ids is None:
            raise ConfigError(
                f"engine.endpoints: {endpoint.url} returns no token_ids, without which a prefix "
                "cannot be exact; serve the target with vLLM 0.11 or newer"
            )
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or []
        if not _fits(ids, logprobs):
            raise _RetryableError("token_ids and logprobs do not fit each other")
        return Completion(ids, [float(x) for x in logprobs], reason, int(cached or 0))


def _fits(ids: Any, logprobs: Any) -> bool:
    if not isinstance(ids, list) or not isinstance(logprobs, list) or len(ids) != len(logprobs):
        return False
    return all(isinstance(i, int) for i in ids) and all(
        isinstance(x, int | float) for x in logprobs
    )


def _failed(message: str) -> Completion:
    return Completion([], [], "error", error=message)
