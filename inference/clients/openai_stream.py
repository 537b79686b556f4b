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
from typing import Any

from specexit.contracts import contract
from specexit.errors import ConfigError

from .reader import StreamReader
from .result import StreamResult
from .transport import AsyncClient, ContractLike, Endpoint, SyncClient, one_answer


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


class _OpenAI(Endpoint):
    """The protocol: addresses, bodies, checks."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        """`base_url`: up to and with `/v1`. `api_key`: by default that of OPENAI_API_KEY."""
        key = os.environ.get("OPENAI_API_KEY") if api_key is None else api_key
        bearer = {"Authorization": f"Bearer {key}"} if key else {}
        super().__init__(base_url, headers={**bearer, **(headers or {})}, **settings)

    def _reader(self, contract_: ContractLike, thinking: bool | str) -> _OpenAIReader:
        return _OpenAIReader(contract(contract_), thinking, *self.tags)

    @staticmethod
    def _body(model: str, options: dict[str, Any], **main: Any) -> dict[str, Any]:
        one_answer(options)
        if options.pop("stream", True) is not True:
            raise ConfigError("stream: must be true, the answer is watched as it streams")
        extra = options.pop("extra_body", None) or {}
        return {"model": model, **main, **options, **extra, "stream": True}


class OpenAIStream(SyncClient, _OpenAI):
    """The synchronous client. Close it, or use it as a context manager."""

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
        body = self._body(model, options, messages=list(messages))
        return self._watch("/chat/completions", body, self._reader(contract_, thinking))

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
        body = self._body(model, options, prompt=prompt)
        return self._watch("/completions", body, self._reader(contract_, thinking))


class AsyncOpenAIStream(AsyncClient, _OpenAI):
    """The asynchronous client. Close it, or use it as an async context manager."""

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
        body = self._body(model, options, messages=list(messages))
        return await self._watch("/chat/completions", body, self._reader(contract_, thinking))

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
        body = self._body(model, options, prompt=prompt)
        return await self._watch("/completions", body, self._reader(contract_, thinking))
