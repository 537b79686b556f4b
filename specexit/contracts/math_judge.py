"""Mathematical equality by math-verify, in a process of its own.

math-verify limits its time by an alarm signal, which works in the main thread only and gets in the
way of other users of that signal; and some inputs keep the algebra busy for ever. So a child
process judges (`python -m specexit.contracts.math_judge`, one JSON line a pair), and is killed when
it is late. Without math-verify (extra `math`) nothing is equal beyond what the caller found.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import select
import subprocess
import sys
import threading
from functools import cache
from importlib.util import find_spec

TIME_LIMIT_S = 5.0
START_LIMIT_S = 60.0
MAX_CHARS = 500

_log = logging.getLogger(__name__)


class MathJudge:
    """One child process, started when first asked and again after it was killed."""

    def __init__(self, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.time_limit_s = time_limit_s
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def same(self, a: str, b: str) -> bool:
        """Whether two LaTeX texts are the same mathematics; False when it takes too long."""
        if max(len(a), len(b)) > MAX_CHARS:
            return False
        with self._lock:
            if self._child is None or self._child.poll() is not None:
                self._start()
            try:
                return self._ask([a, b], self.time_limit_s) == "true"
            except OSError as error:
                _log.warning("math-verify gave no verdict on %r and %r: %s", a, b, error)
                self.stop()
                return False

    def _start(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        atexit.register(self.stop)
        self._ask(["1", "1"], START_LIMIT_S)

    def _ask(self, pair: list[str], limit_s: float) -> str:
        child = self._child
        assert child is not None
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(pair).encode() + b"\n")
        child.stdin.flush()
        ready, _, _ = select.select([child.stdout], [], [], limit_s)
        line = child.stdout.readline() if ready else b""
        if not line:
            raise TimeoutError(f"no verdict within {limit_s:g} s")
        return line.decode().strip()

    def stop(self) -> None:
        """End the child process."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()


@cache
def _judge() -> MathJudge | None:
    if find_spec("math_verify") is None:
        _log.info("math-verify is not installed (extra 'math'): comparing texts and numbers only")
        return None
    return MathJudge()


def same_math(a: str, b: str) -> bool:
    """Whether math-verify, where installed, finds `a` and `b` equal within the time limit."""
    judge = _judge()
    return judge is not None and judge.same(a, b)


def main() -> None:
    """Read pairs from standard input, write verdicts."""
    from math_verify import parse, verify

    logging.disable()
    for line in sys.stdin:
        a, b = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in json.loads(line))
        same = verify(a, b, timeout_seconds=None) or verify(b, a, timeout_seconds=None)
        sys.stdout.write(f"{json.dumps(bool(same))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
