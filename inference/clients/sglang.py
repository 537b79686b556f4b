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
from typing import Any

import httpx

from specexit.contracts import contract

from .reader import StreamReader
from .result import StreamResult
from .transport import AsyncClient, ContractLike, Endpoint, SyncClient, one_answer

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


class _SGLang(Endpoint):
    """The protocol: addresses, bodies, checks."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        incremental: bool | None = None,
        **settings: Any,
    ) -> None:
        """`base_url`: of the server, without a path. `incremental`: None asks the server."""
        bearer = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        super().__init__(base_url, headers=bearer, **settings)
        self.incremental = incremental

    def _reader(self, contract_: ContractLike, thinking: bool | str) -> _SGLangReader:
        return _SGLangReader(bool(self.incremental), contract(contract_), thinking, *self.tags)

    @staticmethod
    def _body(
        prompt: str | Sequence[int], sampling_params: dict[str, Any] | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        params = dict(sampling_params or {})
        one_answer(params)
        main = {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}
        return {
            **main,
            "sampling_params": params,
            **options,
            "stream": True,
            "rid": f"specexit-{uuid.uuid4().hex}",
        }

    def _info_request(self) -> dict[str, Any]:
        return {"url": f"{self.base_url}/get_server_info", "headers": self.headers}

    def _abort_request(self, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "url": f"{self.base_url}/abort_request",
            "json": {"rid": body["rid"]},
            "headers": self.headers,
            "timeout": ABORT_TIMEOUT_S,
        }

    def _note_server(self, response: httpx.Response) -> None:
        """See in the server's information whether its texts are increments."""
        try:
            info = response.json() if response.status_code == 200 else {}
        except ValueError:
            info = {}
        known = info if isinstance(info, dict) else {}
        self.incremental = any(known.get(name) is True for name in _INCREMENTAL)


class SGLangStream(SyncClient, _SGLang):
    """The synchronous client. Close it, or use it as a context manager."""

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
            self._ask_server()
        return self._watch("/generate", body, self._reader(made, thinking))

    def _ask_server(self) -> None:
        try:
            self._note_server(self._client.get(**self._info_request()))
        except httpx.HTTPError:  # the request itself will say what is wrong
            self.incremental = False

    def _abort(self, body: dict[str, Any]) -> None:
        try:
            self._client.post(**self._abort_request(body)).raise_for_status()
        except httpx.HTTPError as error:  # closing the stream ends the request as well
            _log.warning("could not abort %s: %s", body["rid"], error)


class AsyncSGLangStream(AsyncClient, _SGLang):
    """The asynchronous client. Close it, or use it as an async context manager."""

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
            await self._ask_server()
        try:
            return await self._watch("/generate", body, self._reader(made, thinking))
        except asyncio.CancelledError:
            await asyncio.shield(self._abort(body))
            raise

    async def _ask_server(self) -> None:
        try:
            self._note_server(await self._client.get(**self._info_request()))
        except httpx.HTTPError:  # the request itself will say what is wrong
            self.incremental = False

    async def _abort(self, body: dict[str, Any]) -> None:
        try:
            (await self._client.post(**self._abort_request(body))).raise_for_status()
        except httpx.HTTPError as error:  # closing the stream ends the request as well
            _log.warning("could not abort %s: %s", body["rid"], error)
