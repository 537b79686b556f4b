"""A client for SGLang's native `/generate` stream that aborts the request at the commit.

The protocol, as SGLang's HTTP server speaks it: `POST /generate` with `text` (or `input_ids`),
`sampling_params`, `stream: true` and a request id `rid`; server-sent events of the form `{"text",
"meta_info": {"id", "finish_reason", "completion_tokens"}}`, then `[DONE]`. `text` is everything so
far, unless the server was started with incremental output; `/get_server_info` says which. At the
commit we `POST /abort_request {"rid"}` and close the stream (closing alone also ends the request,
a little later). The engine takes `rid` as a *prefix*: it is always a whole, random id here.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from specexit.contracts import Contract, contract
from specexit.errors import ConfigError

from .openai_stream import TIMEOUT, ContractLike
from .reader import StreamReader, refuse
from .result import StreamError, StreamResult

ABORT_TIMEOUT_S = 10.0
_INCREMENTAL = ("incremental_streaming_output", "stream_output")  # new and old name of the setting

_log = logging.getLogger(__name__)


class _SGLangReader(StreamReader):
    def __init__(self, incremental: bool, *args: Any) -> None:
        super().__init__(*args)
        self._incremental = incremental
        self._seen = 0

    def _read(self, event: dict[str, Any]) -> None:
        text = event.get("text")
        meta = event.get("meta_info") or {}
        if isinstance(text, str):
            if not self._incremental:
                # A later, shorter text takes back a replacement character; wait for the longer one.
                text, self._seen = text[self._seen :], max(self._seen, len(text))
            self._content(text)
        counts = ("prompt_tokens", "completion_tokens", "cached_tokens")
        self._usage = {key: meta[key] for key in counts if key in meta} or self._usage
        reason = meta.get("finish_reason")
        if reason:
            self._finish_reason = reason.get("type", "stop") if isinstance(reason, dict) else reason


class _Settings:
    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        incremental: bool | None = None,
        think_start: str = "<think>",
        think_end: str = "</think>",
    ) -> None:
        """`base_url`: of the server, without a path. `incremental`: None asks the server."""
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base_url: {base_url!r} does not begin with http:// or https://")
        self.base_url = base_url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.incremental = incremental
        self.tags = (think_start, think_end)

    def _reader(self, contract_: Contract, thinking: bool | str) -> _SGLangReader:
        return _SGLangReader(bool(self.incremental), contract_, thinking, *self.tags)

    @staticmethod
    def _body(
        prompt: str | Sequence[int], sampling_params: dict[str, Any] | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        params = dict(sampling_params or {})
        if params.get("n", 1) != 1:
            raise ConfigError(f"n: {params['n']!r}; one request watches one answer, send several")
        main = {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}
        return {
            **main,
            "sampling_params": params,
            **options,
            "stream": True,
            "rid": f"specexit-{uuid.uuid4().hex}",
        }

    def _note_server(self, info: Any) -> None:
        known = info if isinstance(info, dict) else {}
        self.incremental = any(known.get(name) is True for name in _INCREMENTAL)


class SGLangStream(_Settings):
    """The synchronous client. Close it, or use it as a context manager."""

    def __init__(
        self, base_url: str, *, client: httpx.Client | None = None, **settings: Any
    ) -> None:
        super().__init__(base_url, **settings)
        self._client = client or httpx.Client(timeout=TIMEOUT)

    def generate(
        self,
        prompt: str | Sequence[int],
        contract_: ContractLike,
        *,
        thinking: bool | str = "auto",
        sampling_params: dict[str, Any] | None = None,
        **options: Any,
    ) -> StreamResult:
        """`POST /generate` until the contract commits; `prompt`: text or token ids."""
        made = contract(contract_)
        body = self._body(prompt, sampling_params, options)
        if self.incremental is None:
            self._note_server(self._server_info())
        reader = self._reader(made, thinking)
        url = f"{self.base_url}/generate"
        try:
            with self._client.stream("POST", url, json=body, headers=self.headers) as response:
                if response.status_code != 200:
                    raise refuse(response.status_code, response.read(), url)
                for chunk in response.iter_bytes():
                    if reader.feed(chunk):
                        break
                if reader.must_abort:
                    self._abort(body["rid"])
        except httpx.HTTPError as error:
            raise StreamError(f"{url}: {type(error).__name__}: {error}") from error
        return reader.result()

    def _server_info(self) -> Any:
        try:
            response = self._client.get(f"{self.base_url}/get_server_info", headers=self.headers)
            return response.json() if response.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None

    def _abort(self, rid: str) -> None:
        try:
            self._client.post(
                f"{self.base_url}/abort_request",
                json={"rid": rid},
                headers=self.headers,
                timeout=ABORT_TIMEOUT_S,
            ).raise_for_status()
        except httpx.HTTPError as error:  # closing the stream ends the request as well
            _log.warning("could not abort %s: %s", rid, error)

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


class AsyncSGLangStream(_Settings):
    """The asynchronous client. Close it, or use it as an async context manager."""

    def __init__(
        self, base_url: str, *, client: httpx.AsyncClient | None = None, **settings: Any
    ) -> None:
        super().__init__(base_url, **settings)
        self._client = client or httpx.AsyncClient(timeout=TIMEOUT)

    async def generate(
        self,
        prompt: str | Sequence[int],
        contract_: ContractLike,
        *,
        thinking: bool | str = "auto",
        sampling_params: dict[str, Any] | None = None,
        **options: Any,
    ) -> StreamResult:
        """`POST /generate` until the contract commits; `prompt`: text or token ids."""
        made = contract(contract_)
        body = self._body(prompt, sampling_params, options)
        if self.incremental is None:
            self._note_server(await self._server_info())
        reader = self._reader(made, thinking)
        url = f"{self.base_url}/generate"
        try:
            async with self._client.stream(
                "POST", url, json=body, headers=self.headers
            ) as response:
                if response.status_code != 200:
                    raise refuse(response.status_code, await response.aread(), url)
                async for chunk in response.aiter_bytes():
                    if reader.feed(chunk):
                        break
                if reader.must_abort:
                    await self._abort(body["rid"])
        except asyncio.CancelledError:
            await asyncio.shield(self._abort(body["rid"]))
            raise
        except httpx.HTTPError as error:
            raise StreamError(f"{url}: {type(error).__name__}: {error}") from error
        return reader.result()

    async def _server_info(self) -> Any:
        try:
            response = await self._client.get(
                f"{self.base_url}/get_server_info", headers=self.headers
            )
            return response.json() if response.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None

    async def _abort(self, rid: str) -> None:
        try:
            response = await self._client.post(
                f"{self.base_url}/abort_request",
                json={"rid": rid},
                headers=self.headers,
                timeout=ABORT_TIMEOUT_S,
            )
            response.raise_for_status()
        except httpx.HTTPError as error:  # closing the stream ends the request as well
            _log.warning("could not abort %s: %s", rid, error)

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
