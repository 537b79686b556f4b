"""A real `vllm serve` with two API servers, started by `specexit serve`, on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest

from inference.clients.openai_stream import AsyncOpenAIStream, OpenAIStream
from specexit.committer import Committer

# The random target writes digits soon after a think end: they stand for answers.
DIGITS = {"type": "regex", "pattern": "[0-9]"}
CONTRACT = json.dumps(DIGITS)
NEVER_MET = json.dumps({"type": "regex", "pattern": "never"})
ALWAYS = json.dumps({"signals": ["remain"], "thresholds": {"remain": 1e9}})
START_LIMIT_S = 400


class Server(NamedTuple):
    """Where it listens, what it serves, and its log."""

    url: str
    model: str
    log: Path

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="module")
def server(chaos: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port, target = free_port(), str(chaos / "target")
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "specexit.cli", "serve", target]
    command += ["--head", str(chaos / "memory"), "--policy", "thresholds.confidence=1.0"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--api-server-count", "2"]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512"]
    command += ["--max-num-seqs", "16", "--block-size", "32", "--served-model-name", "chaos"]
    # This test process runs its engines in itself; a server does not.
    environment = {k: v for k, v in os.environ.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
        try:
            wait_for(f"http://127.0.0.1:{port}/health", process, log)
            yield Server(f"http://127.0.0.1:{port}", "chaos", log)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.5)
    pytest.fail(f"the server did not start:\n{log.read_text()[-4000:]}")


def gauges(server: Server) -> dict[str, float]:
    """Sum over label sets of every metric."""
    found: dict[str, float] = {}
    for line in httpx.get(server.url + "/metrics", timeout=30).text.splitlines():
        match = re.match(r"([\w:]+)(?:\{.*\})? ([-+.\w]+)$", line)
        if match:
            found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return found


def assert_idle(server: Server, wait_s: float = 60) -> None:
    """Running, waiting and the KV cache are 0 (the gauges follow with the engine's next log)."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    end = time.monotonic() + wait_s
    while True:
        now = gauges(server)
        assert all(name in now for name in names)
        if all(now[name] == 0 for name in names):
            return
        assert time.monotonic() < end, {name: now[name] for name in names}
        time.sleep(0.5)


def complete(server: Server, prompt: str, n: int = 120, **extra: Any) -> Any:
    """Greedy completion; `extra` are vllm_xargs."""
    body = {"vllm_xargs": extra} if extra else {}
    return server.client().completions.create(
        model=server.model, prompt=prompt, temperature=0, max_tokens=n, extra_body=body
    )


@pytest.fixture(scope="module")
def words(server: Server) -> list[str]:
    """Two prompts after which, forced out of the thinking, the random model writes a digit."""
    found = []
    for word in ("abc", "2+3=", "xyz", "hello", "q", "(a+b)", "12-7:", "zz", "why?"):
        text = complete(server, f"{word}<think>", specexit=ALWAYS).choices[0].text
        thinking, closed, answer = text.partition("</think>")
        if thinking and closed and re.search("[0-9]", answer):
            found.append(word)
        if len(found) == 2:
            return found
    pytest.fail("the random target writes no digits; make another")


def test_the_printed_command_is_the_one_that_runs(server: Server) -> None:
    first = next(line for line in server.log.read_text().splitlines() if "vllm serve" in line)
    assert "--worker-cls inference.vllm.SpecExitWorker" in first
    assert "--api-server-count 2" in first


def test_a_completion_is_cut_at_its_answer(server: Server, words: list[str]) -> None:
    prompt = f"{words[0]}<think>"
    full = complete(server, prompt, specexit=ALWAYS).choices[0]
    cut = complete(server, prompt, specexit=ALWAYS, contract=CONTRACT).choices[0]
    commit = Committer(DIGITS, thinking=True).feed(full.text)
    assert commit is not None
    assert cut.text == full.text[: commit.position]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", "contract:regex")


def test_streamed_pieces_join_to_the_same_text(server: Server, words: list[str]) -> None:
    prompt = f"{words[0]}<think>"
    whole = complete(server, prompt, specexit=ALWAYS, contract=CONTRACT).choices[0]
    text, last = "", None
    for event in server.client().completions.create(
        model=server.model,
        prompt=prompt,
        temperature=0,
        max_tokens=120,
        stream=True,
        extra_body={"vllm_xargs": {"specexit": ALWAYS, "contract": CONTRACT}},
    ):
        text += event.choices[0].text
        last = event.choices[0]
    assert text == whole.text
    assert last is not None
    assert (last.finish_reason, last.stop_reason) == ("stop", "contract:regex")


def test_a_chat_has_its_thinking_apart_and_its_record(server: Server, words: list[str]) -> None:
    reply = server.client().chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": words[0]}],
        temperature=0,
        max_tokens=120,
        extra_body={"vllm_xargs": {"specexit": ALWAYS, "contract": CONTRACT}},
    )
    choice = reply.choices[0]
    assert choice.stop_reason == "contract:regex"
    assert re.search(r"[0-9]$", choice.message.content)
    fields = choice.message.model_dump()
    assert fields.get("reasoning") or fields.get("reasoning_content")
    assert "</think>" not in choice.message.content
    record = reply.kv_transfer_params["specexit"]
    assert record["exit"] == "injected"
    assert record["boundary"] == 1


def test_a_streamed_chat_says_the_same(server: Server, words: list[str]) -> None:
    options: dict[str, Any] = {
        "model": server.model,
        "messages": [{"role": "user", "content": words[0]}],
        "temperature": 0,
        "max_tokens": 120,
        "extra_body": {"vllm_xargs": {"specexit": ALWAYS, "contract": CONTRACT}},
    }
    whole = server.client().chat.completions.create(**options).choices[0].message.content
    content = ""
    for event in server.client().chat.completions.create(**options, stream=True):
        content += event.choices[0].delta.content or ""
    assert content == whole


def test_three_outputs_of_one_request_end_on_their_own(server: Server) -> None:
    reply = server.client().completions.create(
        model=server.model,
        prompt="xyz",
        temperature=1.0,
        seed=1,
        n=3,
        max_tokens=100,
        extra_body={"vllm_xargs": {"specexit": "off", "contract": CONTRACT}},
    )
    assert len(reply.choices) == 3
    for choice in reply.choices:
        if "<think>" in choice.text:
            continue
        found = Committer(DIGITS, thinking=False).feed(choice.text)
        assert (choice.stop_reason == "contract:regex") == (found is not None)
        if found is not None:
            assert found.position == len(choice.text)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"contract": "nope"}, "boxed_integer"),
        ({"contract": '{"type": "choice", "lettres": "AB"}'}, "contract.lettres"),
        ({"contract": "{"}, "not valid JSON"),
        ({"contract": 3}, "int is not a name"),
        ({"specexit": '{"patiense": 2}'}, "patiense"),
        ({"specexit": '{"thresholds": {"confidence": 7}}'}, "confidence"),
        ({"specexit": "maybe"}, "maybe"),
    ],
)
def test_a_wrong_argument_is_a_400_and_the_server_lives(
    server: Server, extra: dict[str, Any], said: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        complete(server, "abc", **extra)
    message = refused.value.message
    assert f"vllm_xargs.{next(iter(extra))}" in message
    assert said in message
    assert complete(server, "abc", 3).choices[0].finish_reason == "length"


def test_the_stream_client_closes_and_the_server_drops_the_request(
    server: Server, words: list[str]
) -> None:
    prompt = f"{words[0]}<think>"
    with OpenAIStream(server.url + "/v1") as client:
        result = client.complete(
            server.model,
            prompt,
            DIGITS,
            thinking=True,
            temperature=0,
            max_tokens=400,
            ignore_eos=True,
            vllm_xargs={"specexit": ALWAYS},
        )
    stock = complete(server, prompt, 400, specexit=ALWAYS, contract=CONTRACT).choices[0]
    assert result.commit is not None
    assert result.stopped_early
    assert result.text == stock.text
    assert_idle(server)


def test_clients_that_go_away_leave_nothing(server: Server) -> None:
    for _ in range(4):
        stream = server.client().completions.create(
            model=server.model,
            prompt="gone",
            max_tokens=400,
            stream=True,
            extra_body={"ignore_eos": True, "vllm_xargs": {"contract": NEVER_MET}},
        )
        next(iter(stream))
        stream.close()
    assert_idle(server)


def test_64_clients_at_once_get_what_they_would_alone(server: Server, words: list[str]) -> None:
    kinds: list[dict[str, str]] = [
        {"specexit": "off"},
        {"specexit": ALWAYS},
        {"specexit": ALWAYS, "contract": CONTRACT},
        {"specexit": "off", "contract": CONTRACT},
    ]
    prompts = [f"{word}<think>" for word in words]
    alone = {
        (i, k): complete(server, prompt, 60, **kind).choices[0].text
        for i, prompt in enumerate(prompts)
        for k, kind in enumerate(kinds)
    }

    async def together() -> list[tuple[int, int, str]]:
        client = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        watcher = AsyncOpenAIStream(server.url + "/v1")

        async def one(j: int) -> tuple[int, int, str]:
            i, k = j % len(prompts), j // len(prompts) % len(kinds)
            if j >= 56:  # some of them through the stream client
                k = 2
                result = await watcher.complete(
                    server.model,
                    prompts[i],
                    DIGITS,
                    thinking=True,
                    temperature=0,
                    max_tokens=60,
                    vllm_xargs={"specexit": ALWAYS},
                )
                return i, k, result.text
            reply = await client.completions.create(
                model=server.model,
                prompt=prompts[i],
                temperature=0,
                max_tokens=60,
                extra_body={"vllm_xargs": kinds[k]},
            )
            return i, k, reply.choices[0].text

        results = await asyncio.gather(*(one(j) for j in range(64)))
        await client.close()
        await watcher.aclose()
        return results

    for i, k, text in asyncio.run(together()):
        assert text == alone[i, k]
    assert_idle(server)


def test_the_example_runs(server: Server, words: list[str]) -> None:
    example = Path(__file__).resolve().parents[2] / "docs" / "examples" / "openai_server.py"
    command = [sys.executable, str(example), "--url", server.url + "/v1", "--max-tokens", "60"]
    command += ["--question", words[0], "--contract", CONTRACT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "ended:" in done.stdout


def test_the_metrics_count_exits_and_contract_stops(server: Server, words: list[str]) -> None:
    """What both API servers saw adds up on `/metrics`, whichever of them answers."""
    before = gauges(server)
    replies = [
        complete(server, f"{words[i % 2]}<think>", specexit=ALWAYS, contract=CONTRACT)
        for i in range(6)
    ]
    replies += [complete(server, f"{words[i % 2]}<think>", 40 + i) for i in range(4)]
    after = gauges(server)
    assert sum(r.kv_transfer_params["specexit"]["exit"] == "injected" for r in replies) == 6
    stops = sum(str(r.choices[0].stop_reason).startswith("contract:") for r in replies)
    assert stops == 6

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grown("specexit_requests_total") == len(replies)
    assert grown("specexit_contract_stops_total") == stops
    assert grown("specexit_exit_boundary_count") == 6
