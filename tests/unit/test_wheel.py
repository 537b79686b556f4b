"""The wheel: built from the sources, installed elsewhere, imported there."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("specexit", "data_build", "training", "inference")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", *PACKAGES)

PROBE = """
import specexit, specexit.cli, specexit.heads.signal, specexit.replay, specexit.report.page
import data_build.cli, training.cli, inference.vllm.plugin
from specexit.tiny import model_path
assert specexit.__file__.startswith({site!r}), specexit.__file__
assert model_path().joinpath("model.safetensors").is_file()
print(specexit.cli.main(["--version"]))
"""


def test_the_wheel_installs_and_imports(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    sources = tmp_path / "sources"  # a copy: setuptools builds in the tree
    sources.mkdir()
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, sources / name)
    build = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(sources)]
    subprocess.run([*pip, *build], check=True)
    wheel = next(tmp_path.glob("specexit-*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == set(PACKAGES)
    site = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    # -P and a foreign working directory: the sources must not be what is imported
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROBE.format(site=str(site))],
        cwd=tmp_path,
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
