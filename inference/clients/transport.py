"""What all stream clients share: where the server is, reading a stream until enough, closing.

The sync and the async half differ only in how they wait.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import httpx

from specexit.contracts import Contract
from specexit.errors import ConfigError

from .reader import StreamReader, refuse
from .result import StreamError, StreamResult

TIMEOUT = httpx.Timeout(600.0, connect=30.0)
ContractLike = Contract | str | dict[str, Any]


class Endpoint:
    """A server's address, the headers of every request, and its models' think tags."""

    def __init__(
        self,
        base_url: str,
        *,
        headers: dict[str, str] | None = None,
        think_start: str = "<think>",
        think_end: str = "</think>",
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base_url: {base_url!r} does not begin with http:// or https://")
        self.base_url = base_url.rstrip("/")
        self.headers = dict(headers or {})
        self.tags = (think_start, think_end)


def one_answer(options: dict[str, Any]) -> None:
    """Refuse a request for several answers."""
    if options.get("n", 1) != 1:
        raise ConfigError(f"n: {options['n']!r}; one request watches one answer, send several")


class SyncClient(Endpoint):
    """The synchronous half. Close it, or use it as a context manager."""

    def __init__(
        self, base_url: str, *, client: httpx.Client | None = None, **settings: Any
    ) -> None:
        super().__init__(base_url, **settings)
        self._client = client or httpx.Client(timeout=TIMEOUT)

    def _watch(self, path: str, body: dict[str, Any], reader: StreamReader) -> StreamResult:
        """Post `body` and read until the reader has enough; then the stream is closed."""
        url = self.base_url + path
        try:
            with self._client.stream("POST", url, json=body, headers=self.headers) as response:
                if response.status_code != 200:
                    raise refuse(response.status_code, response.read(), url)
                for chunk in response.iter_bytes():
                    if reader.feed(chunk):
                        break
                if reader.must_abort:
                    self._abort(body)
        except httpx.HTTPError as error:
            raise _broken(url, error) from error
        return reader.result()

    def _abort(self, body: dict[str, Any]) -> None:
        """Tell the server to stop, where closing the stream is not all."""

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


class AsyncClient(Endpoint):
    """The asynchronous half. Close it, or use it as an async context manager."""

    def __init__(
        self, base_url: str, *, client: httpx.AsyncClient | None = None, **settings: Any
    ) -> None:
        super().__init__(base_url, **settings)
        self._client = client or httpx.AsyncClient(timeout=TIMEOUT)

    async def _watch(self, path: str, body: dict[str, Any], reader: StreamReader) -> StreamResult:
        """Post `body` and read until the reader has enough; then the stream is closed."""
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
                if reader.must_abort:
                    await self._abort(body)
        except httpx.HTTPError as error:
            raise _broken(url, error) from error
        return reader.result()

    async def _abort(self, body: dict[str, Any]) -> None:
        """Tell the server to stop, where closing the stream is not all."""

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


def _broken(url: str, error: httpx.HTTPError) -> StreamError:
    return StreamError(f"{url}: {type(error).__name__}: {error}")
