"""A rule-based reasoner behind a real HTTP server that speaks the completions protocol.

It adds numbers aloud, paragraph by paragraph, checks itself, and answers with what its thinking
has reached so far when it is cut. A question's words make it misbehave: `loop` (never closes its
thinking), `blank` (no answer), `prose` (an answer without a box), `slip` (first wrong, corrected
in the end), `again` (a second think block in the answer).
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

START, END, EOS = "<think>", "</think>", "<|im_end|>"


def question(i: int) -> str:
    """A question with its own numbers."""
    return f"What is {i + 10}+{i % 7 + 2}+{i % 11 + 3}?"


def gold(text: str) -> int:
    """The right answer."""
    return sum(map(int, re.findall(r"\d+", text)))


def thinking(text: str) -> str:
    """The whole thinking about a question."""
    numbers = list(map(int, re.findall(r"\d+", text)))
    parts, total = [f"I have {len(numbers)} numbers."], 0
    for number in numbers:
        total += number
        wrong = "slip" in text and number is numbers[-1]
        parts.append(f"Then {number} more, so {total + 1 if wrong else total}.")
    parts += [f"Wait, I check it: still {total + ('slip' in text)}." for _ in range(total % 4)]
    if "slip" in text:
        parts.append(f"No, I forgot something, so {total}.")
    parts.append("That is all.")
    return "\n\n".join(parts)


def continuation(prompt: str) -> tuple[str, bool]:
    """What the reasoner writes after a prompt, and whether it ends by itself."""
    asked, _, said = prompt.rpartition("<|im_start|>assistant\n")
    text = asked.rpartition("<|im_start|>user\n")[2]
    if END in said:
        return _answer(text, said[: said.index(END)]), True
    whole = thinking(text)
    if "loop" in text:
        return f"{START}\n" + (whole + "\n\n") * 3, False
    return f"{START}\n{whole}\n{END}" + _answer(text, whole), True


def _answer(text: str, said: str) -> str:
    if "blank" in text:
        return EOS
    reached = re.findall(r"(?:so|still) (\d+)", said)
    number = reached[-1] if reached else "7"
    if "prose" in text:
        return f"\n\nIt may be {number}.{EOS}"
    block = f"\n{START}\nmaybe \\boxed{{1}}\n{END}" if "again" in text else ""
    return f"{block}\n\nThe answer is \\boxed{{{number}}}.{EOS}"


class ScriptedServer:
    """The server. `fault(n, body)` may return a fault for the n-th request (from 0): a status
    code, `garbage`, `short`, `hang`, `drop`, or None."""

    def __init__(self, tokenizer: Any, fault: Callable[[int, Any], Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self.fault = fault or (lambda n, body: None)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.delay_s = 0.0
        self.token_ids = True
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = self.tokenizer.decode(body["prompt"], skip_special_tokens=False)
        text, ends = continuation(prompt)
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        cut = not ends or len(ids) > body["max_tokens"]
        ids = ids[: body["max_tokens"]]
        seed = hashlib.md5(prompt.encode()).digest()
        logprobs = [-(seed[i % 16] + i % 7) / 512 for i in range(len(ids))]
        choice = {
            "index": 0,
            "text": self.tokenizer.decode(ids, skip_special_tokens=True),
            "finish_reason": "length" if cut else "stop",
            "logprobs": {"token_logprobs": logprobs},
        }
        if self.token_ids:
            choice["token_ids"] = ids
        usage = {
            "prompt_tokens": len(body["prompt"]),
            "completion_tokens": len(ids),
            "prompt_tokens_details": {"cached_tokens": len(body["prompt"]) // 16 * 16},
        }
        return {"object": "text_completion", "choices": [choice], "usage": usage}

    def number(self, body: dict[str, Any], headers: dict[str, str]) -> int:
        with self._lock:
            self.bodies.append(body)
            self.headers.append(headers)
            return len(self.bodies) - 1


def _handler(server: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.send(200, json.dumps({"data": [{"id": "scripted", "max_model_len": 2048}]}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            fault = server.fault(server.number(body, dict(self.headers)), body)
            time.sleep(server.delay_s)
            if fault == "drop":
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            elif fault == "hang":
                time.sleep(3)
            elif fault == "garbage":
                self.send(200, "<html>502 upstream</html>")
            elif isinstance(fault, int):
                self.send(fault, "{}", {"retry-after": "0"} if fault == 429 else {})
            else:
                reply = server.complete(body)
                if fault == "short":
                    reply["choices"][0]["logprobs"]["token_logprobs"].pop()
                self.send(200, json.dumps(reply))

        def send(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

    return Handler
