"""Clients that stop a running server at the committed answer, by closing or aborting the stream."""

from __future__ import annotations

from .openai_stream import AsyncOpenAIStream, OpenAIStream
from .result import StreamError, StreamResult
from .sglang import AsyncSGLangStream, SGLangStream

__all__ = [
    "AsyncOpenAIStream",
    "AsyncSGLangStream",
    "OpenAIStream",
    "SGLangStream",
    "StreamError",
    "StreamResult",
]
