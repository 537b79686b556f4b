"""Triton's interpreter in a test process of its own, made fast enough for a test.

`TRITON_INTERPRET=1` must be in the environment before triton is imported.
"""

from __future__ import annotations

from typing import Any


def quicken() -> None:
    """Patch `triton.language` once a launch instead of once a nested call.

    Each call of a jit function from another scans and patches the whole language again, which
    takes most of the interpreter's time; the launch has done it already. Functions of triton's
    own library see the language through `triton.language.core`, which stays patched.
    """
    from triton.language import standard
    from triton.runtime import interpreter

    patch_lang = interpreter._patch_lang
    patched: list[Any] = []

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not patched:
            patched.append(patch_lang(standard.sum.fn))
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
