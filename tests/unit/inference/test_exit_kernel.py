"""The exit kernel equals the torch path: under Triton's interpreter, and it compiles for GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

STEPS = int(os.environ.get("SPECEXIT_FUZZ_STEPS", "144"))


def run(module: str, *arguments: str, **environment: str) -> dict[str, object]:
    """The JSON line that a module prints, from a process of its own."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_kernel_equals_the_torch_path_on_random_steps() -> None:
    """More of them with SPECEXIT_FUZZ_STEPS; each has up to four requests."""
    found = run("tests.unit.inference.kernel_fuzz", "0", str(STEPS), TRITON_INTERPRET="1")
    assert found["wrong"] == []
    assert isinstance(found["rows"], int)
    assert found["rows"] >= 2 * STEPS
    assert isinstance(found["injected"], int)
    assert found["injected"] >= STEPS // 12
    assert found["natural"]


def test_kernel_compiles_for_gpus() -> None:
    """To machine code, without a GPU: Triton brings its own assembler."""
    found = run("tests.unit.inference.kernel_compile", TRITON_INTERPRET="0")
    assert set(found) == {"sm_80 linear", "sm_80 memory", "sm_90 linear", "sm_90 memory"}
    for name, numbers in found.items():
        assert isinstance(numbers, dict)
        assert numbers["bytes"] > 0, name
        assert numbers["spilled"] == 0, name  # no local memory
