"""The stream client against a live llama.cpp server that serves the built-in reasoner.

The pinned environment has xllamacpp (llama.cpp with its HTTP server) and gguf; in another one
without them the tests are skipped.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from inference.clients import AsyncOpenAIStream, OpenAIStream, StreamError
from specexit import contract
from specexit.tiny.data import questions

from .tiny_gguf import write_gguf

pytest.importorskip("xllamacpp", reason="xllamacpp (a llama.cpp server) is not installed")
pytest.importorskip("gguf", reason="gguf (to write the reasoner for llama.cpp) is not installed")

START_LIMIT_S = 120
SERVE = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port = sys.argv[1], int(sys.argv[2])
params.hostnames, params.endpoint_slots = ["127.0.0.1"], True
params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 8192, 4, 1
server = xllamacpp.Server(params)
sys.stdin.read()
"""
BOX = contract("boxed_integer")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("llama")
    model = folder / "tiny.gguf"
    write_gguf(model)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Path(folder / "log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(model), str(port)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    try:
        address = f"http://127.0.0.1:{port}"
        end = time.monotonic() + START_LIMIT_S
        while not _healthy(address):
            assert child.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.1)
        yield address
    finally:
        child.kill()
        child.wait()


def _healthy(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health").status_code == 200
    except httpx.HTTPError:
        return False


def _idle(address: str, limit_s: float = 10.0) -> bool:
    """Whether no slot of the server works any more, within the limit."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if not any(slot["is_processing"] for slot in httpx.get(f"{address}/slots").json()):
            return True
        time.sleep(0.02)
    return False


def _prompt(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<think>\n"


def test_the_stream_ends_at_the_commit_and_the_slot_is_free(url):
    with OpenAIStream(f"{url}/v1") as client:
        for asked in questions("heldout", 4):
            prompt = _prompt(asked["question"])
            options = {"max_tokens": 600, "temperature": 0}
            body = {"model": "tiny", "prompt": prompt, **options}
            full = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
            # It would write on and on; the client ends it.
            result = client.complete("tiny", prompt, BOX, thinking=True, ignore_eos=True, **options)
            text = full["choices"][0]["text"]
            assert result.answer is not None
            assert result.answer == BOX.project(text, thinking=True)
            assert text.startswith(result.text)
            assert result.stopped_early
            assert _idle(url)


def test_chat_content_with_and_without_thinking(url):
    messages = [{"role": "user", "content": questions("heldout", 1)[0]["question"]}]
    options = {"max_tokens": 1500, "temperature": 0}
    with OpenAIStream(f"{url}/v1") as client:
        thinks = client.chat(
            "tiny", messages, BOX, chat_template_kwargs={"enable_thinking": True}, **options
        )
        plain = client.chat("tiny", messages, BOX, thinking=False, **options)
    assert thinks.text.startswith("<think>")
    assert thinks.text.endswith(f"\\boxed{{{thinks.answer}}}")
    assert thinks.stopped_early
    assert "<think>" not in plain.text
    assert plain.answer is not None
    assert _idle(url)


def test_many_requests_at_once(url):
    prompts = [_prompt(asked["question"]) for asked in questions("heldout", 8)]

    async def all_of_them():
        async with AsyncOpenAIStream(f"{url}/v1") as client:
            return await asyncio.gather(
                *(
                    client.complete(
                        "tiny",
                        p,
                        BOX,
                        thinking=True,
                        max_tokens=1500,
                        temperature=0,
                        ignore_eos=True,
                    )
                    for p in prompts
                )
            )

    results = asyncio.run(all_of_them())
    assert all(result.answer is not None for result in results)
    assert _idle(url)


def test_a_refused_request_says_why(url):
    with OpenAIStream(f"{url}/v1") as client, pytest.raises(StreamError, match="answered 400"):
        client.complete("tiny", _prompt("x") * 900, BOX, thinking=True, max_tokens=5)
