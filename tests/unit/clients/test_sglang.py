"""SGLang's native stream: cumulative or incremental text, and the abort."""

from __future__ import annotations

import asyncio

import pytest

from inference.clients import AsyncSGLangStream, SGLangStream, StreamError

ANSWER = ["\\boxed{1}", "</thi", "nk>So \\boxed", "{7", "3} and"]


@pytest.fixture(params=["sync", "async"])
def generate(request, server):
    if request.param == "sync":

        def sync(*args, **options):
            with SGLangStream(server.url) as client:
                return client.generate(*args, **options)

        return sync

    def run(*args, **options):
        async def once():
            async with AsyncSGLangStream(server.url) as client:
                return await client.generate(*args, **options)

        return asyncio.run(once())

    return run


@pytest.mark.parametrize("incremental", [False, True])
def test_generate_aborts_at_the_commit(generate, server, incremental):
    server.script, server.endless, server.incremental = ANSWER, True, incremental
    result = generate(
        "prompt", "boxed_integer", thinking=True, sampling_params={"max_new_tokens": 9}
    )
    assert result.answer == "73"
    assert result.text == "\\boxed{1}</think>So \\boxed{73}"
    assert result.stopped_early
    assert server.wait_idle()
    (path, body, _), (abort_path, abort, _) = server.requests
    assert (path, abort_path) == ("/generate", "/abort_request")
    assert body["stream"] is True
    assert body["text"] == "prompt"
    assert body["sampling_params"] == {"max_new_tokens": 9}
    assert abort == {"rid": body["rid"]}
    assert len(abort["rid"]) > 32


def test_a_finished_request_is_not_aborted(generate, server):
    server.script = ["The answer is B"]
    result = generate([1, 2, 3], "choice", thinking=False)
    assert (result.answer, result.finish_reason) == ("B", "stop")
    assert server.aborted == set()
    assert server.requests[0][1]["input_ids"] == [1, 2, 3]
    assert result.usage == {"completion_tokens": 2}


def test_a_refused_request_says_why(generate, server):
    server.status = 400
    with pytest.raises(StreamError, match="answered 400: max_tokens: too many"):
        generate("p", "boxed_integer")
