"""A client for OpenAI-compatible servers (vLLM, SGLang, llama.cpp, ...) that stops at the commit.

    with OpenAIStream("http://localhost:8000/v1") as client:
        result = client.chat("Qwen/Qwen3-4B", messages, "boxed_integer", thinking=False)
    result.answer, result.text

It streams, feeds the committer, and closes the connection at the commit: servers abort a request
whose client has gone. Chat deltas in `reasoning_content` or `reasoning` (a reasoning parser at
work) are never read for the answer, and once one has come, the content is taken as the answer
alone. Otherwise `thinking` says how the content begins, as for `Committer`; with `"auto"` a content
without any think tag commits at its end only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from specexit.contracts import Contract, contract
from specexit.errors import ConfigError

from .reader import StreamReader, refuse
from .result import StreamError, StreamResult

TIMEOUT = httpx.Timeout(600.0, connect=30.0)
ContractLike = Contract | str | dict[str, Any]


class _OpenAIReader(StreamReader):
    def _read(self, event: dict[str, Any]) -> None:
        self._usage = event.get("usage") or self._usage
        for choice in event.get("choices") or ():
            if choice.get("index", 0) != 0:
                continue
            delta = choice.get("delta") or {}
            reasoning = delta.get("reasoning_content") or delta.get("reasoning")
            if isinstance(reasoning, str):
                self._reasoning.append(reasoning)
            content = choice.get("text") if "text" in choice else delta.get("content")
            if isinstance(content, str):
                self._content(content)
            self._finish_reason = choice.get("finish_reason") or self._finish_reason


class _Settings:
    """What the sync and the async client share: addresses, bodies, checks."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: dict[str, str] | None = None,
        think_start: str = "<think>",
        think_end: str = "</think>",
    ) -> None:
        """`base_url`: up to and with `/v1`. `api_key`: by default that of OPENAI_API_KEY."""
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base_url: {base_url!r} does not begin with http:// or https://")
        self.base_url = base_url.rstrip("/")
        key = os.environ.get("OPENAI_API_KEY") if api_key is None else api_key
        self.headers = {**({"Authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
        self.tags = (think_start, think_end)

    def reader(self, contract_: ContractLike, thinking: bool | str) -> _OpenAIReader:
        return _OpenAIReader(contract(contract_), thinking, *self.tags)

    @staticmethod
    def body(model: str, options: dict[str, Any], **main: Any) -> dict[str, Any]:
        if options.get("n", 1) != 1:
            raise ConfigError(f"n: {options['n']!r}; one request watches one answer, send several")
        if options.pop("stream", True) is not True:
            raise ConfigError("stream: must be true, the answer is watched as it streams")
        extra = options.pop("extra_body", None) or {}
        return {"model": model, **main, **options, **extra, "stream": True}


class OpenAIStream(_Settings):
    """The synchronous client. Close it, or use it as a context manager."""

    def __init__(
        self, base_url: str, *, client: httpx.Client | None = None, **settings: Any
    ) -> None:
        super().__init__(base_url, **settings)
        self._client = client or httpx.Client(timeout=TIMEOUT)

    def chat(
        self,
        model: str,
        messages: Sequence[dict[str, Any]],
        contract_: ContractLike,
        *,
        thinking: bool | str = "auto",
        **options: Any,
    ) -> StreamResult:
        """`POST /chat/completions`, until the contract commits. `options`: as in the API."""
        body = self.body(model, options, messages=list(messages))
        return self._watch("/chat/completions", body, self.reader(contract_, thinking))

    def complete(
        self,
        model: str,
        prompt: str | Sequence[int],
        contract_: ContractLike,
        *,
        thinking: bool | str = "auto",
        **options: Any,
    ) -> StreamResult:
        """`POST /completions`, until the contract commits. `options`: as in the API."""
        body = self.body(model, options, prompt=prompt)
        return self._watch("/completions", body, self.reader(contract_, thinking))

    def _watch(self, path: str, body: dict[str, Any], reader: StreamReader) -> StreamResult:
        url = self.base_url + path
        try:
            with self._client.stream("POST", url, json=body, headers=self.headers) as response:
                if response.status_code != 200:
                    raise refuse(response.status_code, response.read(), url)
                for chunk in response.iter_bytes():
                    if reader.feed(chunk):
                        break
        except httpx.HTTPError as error:
            raise StreamError(f"{url}: {type(error).__name__}: {error}") from error
        return reader.result()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncOpenAIStream(_Settings):
    """The asynchronous client. Close it, or use it as an async context manager."""

    def __init__(
        self, base_url: str, *, client: httpx.AsyncClient | None = None, **settings: Any
    ) -> None:
        super().__init__(base_url, **settings)
        self._client = client or httpx.AsyncClient(timeout=TIMEOUT)

    async def chat(
        self,
        model: str,
        messages: Sequence[dict[str, Any]],
        contract_: ContractLike,
        *,
        thinking: bool | str = "auto",
        **options: Any,
    ) -> StreamResult:
        """`POST /chat/completions`, until the contract commits. `options`: as in the API."""
        body = self.body(model, options, messages=list(messages))
        return await self._watch("/chat/completions", body, self.reader(contract_, thinking))

    async def complete(
        self,
        model: str,
        prompt: str | Sequence[int],
        contract_: ContractLike,
        *,
        thinking: bool | str = "auto",
        **options: Any,
    ) -> StreamResult:
        """`POST /completions`, until the contract commits. `options`: as in the API."""
        body = self.body(model, options, prompt=prompt)
        return await self._watch("/completions", body, self.reader(contract_, thinking))

    async def _watch(self, path: str, body: dict[str, Any], reader: StreamReader) -> StreamResult:
        url = self.base_url + path
        try:
            async with self._client.stream(
                "POST", url, json=body, headers=self.headers
            ) as response:
                if response.status_code != 200:
                    raise refuse(response.status_code, await response.aread(), url)
                async for chunk in response.aiter_bytes():
                    if reader.feed(chunk):
                        break
        except httpx.HTTPError as error:
            raise StreamError(f"{url}: {type(error).__name__}: {error}") from error
        return reader.result()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
