"""The OpenAI-compatible client: it stops at the commit, and the server's request ends."""

from __future__ import annotations

import asyncio

import pytest

from inference.clients import AsyncOpenAIStream, OpenAIStream, StreamError
from specexit.contracts import ContractError
from specexit.errors import ConfigError

MESSAGES = [{"role": "user", "content": "?"}]
ANSWER = ["So ", "\\box", "ed{7", "3}", ". Then"]


@pytest.fixture(params=["sync", "async"])
def ask(request, server):
    """`ask("chat" | "complete", ...)` by either client."""
    if request.param == "sync":

        def sync(method, *args, **options):
            with OpenAIStream(f"{server.url}/v1", api_key="k") as client:
                return getattr(client, method)("m", *args, **options)

        return sync

    def run(method, *args, **options):
        async def once():
            async with AsyncOpenAIStream(f"{server.url}/v1", api_key="k") as client:
                return await getattr(client, method)("m", *args, **options)

        return asyncio.run(once())

    return run


def test_chat_stops_at_the_commit_and_the_request_ends(ask, server):
    server.script, server.endless = ANSWER, True
    result = ask("chat", MESSAGES, "boxed_integer", thinking=False, max_tokens=9)
    assert result.answer == "73"
    assert result.text == "So \\boxed{73}"
    assert result.stopped_early
    assert result.finish_reason is None
    assert result.ttva_s is not None
    assert server.wait_idle()
    path, body, headers = server.requests[0]
    assert path == "/v1/chat/completions"
    assert body == {"model": "m", "messages": MESSAGES, "max_tokens": 9, "stream": True}
    assert headers["authorization"] == "Bearer k"


def test_completions_stop_at_the_commit(ask, server):
    server.script = ["thinking \\boxed{1}</thi", "nk>\u2028 \\boxed", "{2} and more"]
    server.endless = True
    result = ask("complete", "prompt", "boxed_integer", thinking=True)
    assert result.answer == "2"
    assert result.text == "thinking \\boxed{1}</think>\u2028 \\boxed{2}"
    assert result.overshoot == 0 or result.overshoot == len(" and more")
    assert server.wait_idle()


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_never_commits_and_makes_the_content_the_answer(ask, server, key):
    server.script = [{key: "is it \\boxed{1}?"}, {key: " no"}, *ANSWER]
    server.endless = True
    result = ask("chat", MESSAGES, "boxed_integer")
    assert result.answer == "73"
    assert result.reasoning == "is it \\boxed{1}? no"
    assert server.wait_idle()


def test_content_without_tags_commits_at_its_end_in_auto(ask, server):
    server.script = ANSWER
    result = ask("chat", MESSAGES, "boxed_integer")
    assert result.answer == "73"
    assert not result.stopped_early
    assert result.finish_reason == "stop"
    assert result.text == "".join(ANSWER)


def test_an_answer_that_only_lacks_its_terminator_is_taken_at_the_end(ask, server):
    server.script = ["The answer", " is B"]
    result = ask("complete", "p", {"type": "choice"}, thinking=False)
    assert (result.answer, result.finish_reason) == ("B", "length")
    assert result.usage == {"completion_tokens": 7}


def test_no_answer_is_no_error(ask, server):
    server.script = ["nothing here"]
    result = ask("chat", MESSAGES, "boxed_integer", thinking=False)
    assert result.answer is None
    assert result.commit is None


def test_a_refused_request_says_why(ask, server):
    server.status = 400
    with pytest.raises(StreamError, match="answered 400: max_tokens: too many"):
        ask("chat", MESSAGES, "boxed_integer")


def test_an_error_in_the_stream_is_raised(ask, server):
    server.script = ["So ", {"error": {"message": "out of memory"}}]
    with pytest.raises(StreamError, match="out of memory"):
        ask("chat", MESSAGES, "boxed_integer", thinking=False)


def test_a_stream_that_breaks_off_is_no_answer(ask, server):
    server.script, server.break_off = ["The answer is B"], True
    with pytest.raises(StreamError):
        ask("complete", "p", "choice", thinking=False)


def test_wrong_use_is_refused_before_anything_is_sent(ask, server):
    for options in ({"n": 2}, {"stream": False}):
        with pytest.raises(ConfigError, match=r"^(n|stream): "):
            ask("chat", MESSAGES, "boxed_integer", **options)
    with pytest.raises(ContractError, match=r"^contract\.max"):
        ask("chat", MESSAGES, {"type": "boxed_integer", "max": "x"})
    with pytest.raises(ConfigError, match=r"^base_url"):
        OpenAIStream("localhost:8000")
    assert server.requests == []


def test_many_requests_at_once(server):
    server.script, server.endless = ANSWER, True

    async def all_of_them():
        async with AsyncOpenAIStream(f"{server.url}/v1") as client:
            asks = [client.chat("m", MESSAGES, "boxed_integer", thinking=False) for _ in range(12)]
            return await asyncio.gather(*asks)

    assert {result.answer for result in asyncio.run(all_of_them())} == {"73"}
    assert server.wait_idle()
