"""A real HTTP server on this machine that speaks both wire protocols and counts what still runs."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class StreamServer(ThreadingHTTPServer):
    """Streams `script` (pieces of text, or whole events) cut into random byte packets."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script: list[Any] = []
        self.endless = False  # go on with filler after the script
        self.break_off = False  # close without an end
        self.incremental = False
        self.status = 200
        self.running = 0
        self.aborted: set[str] = set()
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.lock = threading.Lock()
        self.rng = random.Random(3)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def wait_idle(self, limit_s: float = 5.0) -> bool:
        """Whether no request runs any more, within the limit."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if self.running == 0:
                return True
            time.sleep(0.01)
        return False


class _Handler(BaseHTTPRequestHandler):
    server: StreamServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._json({"incremental_streaming_output": self.server.incremental})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.path, body, headers))
        if self.path == "/abort_request":
            self.server.aborted.add(body["rid"])
            self._json({})
        elif self.server.status != 200:
            self._json({"error": {"message": "max_tokens: too many"}}, self.server.status)
        else:
            self._stream(body)

    def _json(self, value: Any, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, body: dict[str, Any]) -> None:
        server = self.server
        with server.lock:
            server.running += 1
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            for event in self._events(body):
                if body.get("rid") in server.aborted:
                    break
                self._packets(event)
            if not server.break_off:
                self._packets("[DONE]")
                self.wfile.write(b"0\r\n\r\n")
        except OSError:  # the client has gone
            pass
        finally:
            self.close_connection = True
            with server.lock:
                server.running -= 1

    def _events(self, body: dict[str, Any]) -> Iterator[Any]:
        shape = _SHAPES[self.path](self.server, body)
        yield from map(shape, self.server.script)
        while self.server.endless:
            time.sleep(0.005)
            yield shape(" more")
        if not self.server.break_off:
            yield shape(None)

    def _packets(self, event: Any) -> None:
        """Write an event in packets that ignore characters and lines."""
        data = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
        raw = f": ping\r\n\r\ndata: {data}\n\n".encode()
        while raw:
            size = self.server.rng.randint(1, 40)
            packet, raw = raw[:size], raw[size:]
            self.wfile.write(f"{len(packet):x}\r\n".encode() + packet + b"\r\n")
            self.wfile.flush()


def _chat(_: StreamServer, __: dict[str, Any]) -> Any:
    def shape(piece: Any) -> Any:
        if piece is None:
            return {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        if isinstance(piece, str):
            piece = {"content": piece}
        if "error" in piece:
            return piece
        return {"choices": [{"index": 0, "delta": piece, "finish_reason": None}]}

    return shape


def _completions(_: StreamServer, __: dict[str, Any]) -> Any:
    def shape(piece: Any) -> Any:
        if piece is None:
            return {
                "choices": [{"index": 0, "text": "", "finish_reason": "length"}],
                "usage": {"completion_tokens": 7},
            }
        return {"choices": [{"index": 0, "text": piece, "finish_reason": None}]}

    return shape


def _generate(server: StreamServer, body: dict[str, Any]) -> Any:
    so_far: list[str] = []

    def shape(piece: Any) -> Any:
        reason = {"type": "stop", "matched": 2} if piece is None else None
        so_far.append(piece or "")
        text = so_far[-1] if server.incremental else "".join(so_far)
        meta = {"id": body["rid"], "finish_reason": reason, "completion_tokens": len(so_far)}
        return {"text": text, "meta_info": meta}

    return shape


_SHAPES = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completions,
    "/generate": _generate,
}


@pytest.fixture
def server() -> Iterator[StreamServer]:
    made = StreamServer()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()
