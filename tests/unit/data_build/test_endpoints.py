"""Endpoints that answer 429, 500, garbage, hang or die; several of them; keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_build.build import EngineFailedError, build
from data_build.config import DataSettings
from data_build.folder import RunFolder
from data_build.run import run
from specexit.dataset import read_traces
from specexit.errors import ConfigError

from .scripted import ScriptedServer, question

Make = Callable[..., DataSettings]
Write = Callable[..., Path]


def texts(n: int) -> list[str]:
    return [question(i) for i in range(n)]


def make(settings: DataSettings, out: Path) -> None:
    """The rows only."""
    with RunFolder(out) as folder:
        build(settings, folder, progress=False)


def bytes_of(folder: Path) -> list[bytes]:
    return [f.read_bytes() for f in sorted((folder / "data").glob("*.parquet"))]


FAULTS: list[Any] = [429, 500, 503, "garbage", "short", "drop"]


@pytest.mark.parametrize("fault", FAULTS)
def test_passing_faults_are_retried_and_change_nothing(
    fault: Any, server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    settings = settings_of(write_questions(texts(5)), [server.url])
    make(settings, tmp_path / "calm")
    server.bodies.clear()
    server.fault = lambda n, body: fault if n % 3 == 0 else None
    make(settings, tmp_path / "stormy")
    assert bytes_of(tmp_path / "stormy") == bytes_of(tmp_path / "calm")


def test_a_hanging_request_times_out_and_is_retried(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    server.fault = lambda n, body: "hang" if n == 1 else None
    settings = settings_of(write_questions(texts(3)), [server.url], engine={"timeout_s": 0.5})
    make(settings, tmp_path / "out")
    assert all(t.keep for t in read_traces(tmp_path / "out"))


def test_a_dead_endpoint_stops_the_run_with_a_message_and_a_later_run_goes_on(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    file = write_questions(texts(24))
    settings = settings_of(file, [server.url], engine={"retries": 1, "concurrency": 2})
    make(settings, tmp_path / "calm")
    server.bodies.clear()
    server.fault = lambda n, body: 500 if n > 60 else None
    with pytest.raises(EngineFailedError, match="run the same command again"):
        make(settings, tmp_path / "out")
    answered = 61
    finished = len(bytes_of(tmp_path / "out"))
    assert 0 < finished < 3
    server.bodies.clear()
    server.fault = lambda n, body: None
    make(settings, tmp_path / "out")
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "calm")
    # Answers that came before the failure were journalled: none is asked for again, but for
    # those that were on their way when the run stopped.
    total = sum(sum(t.probed) + 1 for t in read_traces(tmp_path / "calm"))
    assert total - answered <= len(server.bodies) <= total - answered + 2


def test_few_failures_are_dropped_and_counted(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    server.fault = lambda n, body: 400 if "+5?" in server.tokenizer.decode(body["prompt"]) else None
    settings = settings_of(
        write_questions(texts(22)), [server.url], engine={"max_error_share": 0.3}
    )
    stats = run(settings, str(tmp_path / "out"), progress=False)
    assert stats is not None
    assert stats["drop_reasons"] == {"engine_error": 2}
    assert stats["traces"] == 22


def test_one_of_two_endpoints_may_die(
    server: ScriptedServer, tokenizer: Any, write_questions: Write, settings_of: Make,
    tmp_path: Path,
) -> None:  # fmt: skip
    other = ScriptedServer(tokenizer)
    file = write_questions(texts(16))
    calm = settings_of(file, [server.url])
    make(calm, tmp_path / "calm")
    other.fault = lambda n, body: "drop" if n > 10 else None
    make(settings_of(file, [server.url, other.url]), tmp_path / "out")
    other.stop()
    assert len(other.bodies) > 10
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "calm")


def test_all_requests_of_a_trace_go_where_its_cache_is(
    server: ScriptedServer, tokenizer: Any, write_questions: Write, settings_of: Make,
    tmp_path: Path,
) -> None:  # fmt: skip
    other = ScriptedServer(tokenizer)
    settings = settings_of(write_questions(texts(16)), [server.url, other.url])
    make(settings, tmp_path / "out")
    other.stop()
    seen = [
        {s.tokenizer.decode(b["prompt"]).split("?")[0] for b in s.bodies} for s in (server, other)
    ]
    assert seen[0]
    assert seen[1]
    assert not seen[0] & seen[1]


def test_no_endpoint_at_all_is_an_error_that_names_it(
    write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    settings = settings_of(write_questions(texts(1)), ["http://127.0.0.1:9/v1"])
    with pytest.raises(ConfigError, match=r"engine\.endpoints: none answers: http://127"):
        make(settings, tmp_path / "out")


def test_a_refused_key_names_the_variable(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    server.fault = lambda n, body: 401
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        make(settings_of(write_questions(texts(2)), [server.url]), tmp_path)


def test_the_key_is_sent(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("MY_KEY", "sesame")
    settings = settings_of(
        write_questions(texts(1)), [server.url], engine={"api_key_env": "MY_KEY"}
    )
    make(settings, tmp_path)
    assert {h["Authorization"] for h in server.headers} == {"Bearer sesame"}


def test_an_endpoint_without_token_ids_is_refused_at_once(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    server.token_ids = False
    with pytest.raises(ConfigError, match="returns no token_ids"):
        make(settings_of(write_questions(texts(2)), [server.url]), tmp_path)


def test_a_wrong_model_name_is_refused_at_once(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    settings = settings_of(write_questions(texts(1)), [server.url], engine={"model": "other"})
    with pytest.raises(ConfigError, match="serves scripted, not other"):
        make(settings, tmp_path)
