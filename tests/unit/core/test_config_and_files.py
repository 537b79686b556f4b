"""Settings from YAML and overrides; files that are whole or absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from specexit.config import Settings, load
from specexit.errors import ConfigError
from specexit.files import atomic_path, read_json, write_json
from specexit.provenance import write_provenance


class Inner(Settings):
    """A section."""

    rate: float = 0.5
    """A number."""


class Outer(Settings):
    """A configuration."""

    name: str
    """Required."""
    inner: Inner = Inner()
    """A section."""


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("name: a\ninner: {rate: 1}\n")
    assert load(Outer, file) == Outer(name="a", inner=Inner(rate=1))
    assert load(Outer, file, ["inner.rate=2.5", "name=b"]) == Outer(name="b", inner=Inner(rate=2.5))
    assert load(Outer, None, ["name=x"]).name == "x"


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("name: a\nrate: 1", [], r"rate: unknown key; known keys: inner, name"),
        ("name: a\ninner: {rte: 1}", [], r"inner\.rte: unknown key; known keys: rate"),
        ("inner: {rate: 1}", [], r"name: missing"),
        ("name: a", ["inner.rate=fast"], r"inner\.rate: 'fast' is not valid"),
        ("name: a", ["inner"], r"write it as key\.sub=value"),
        ("name: a", ["name.x=1"], r"name is a value, not a section"),
        ("- 1", [], r"must be a mapping"),
        ("a: [", [], r"not valid YAML"),
    ],
)
def test_faults_name_the_key_and_the_fix(
    tmp_path: Path, text: str, overrides: list[str], message: str
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(Outer, file, overrides)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file"):
        load(Outer, tmp_path / "absent.yaml")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    write_json(file, {"a": 1})

    def write_half() -> None:
        with atomic_path(file) as temporary:
            temporary.write_text("half")
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        write_half()
    assert read_json(file) == {"a": 1}
    assert list(tmp_path.iterdir()) == [file]


def test_json_refuses_what_json_has_not(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", float("nan"))
    assert list(tmp_path.iterdir()) == []


def test_provenance_says_how_to_remake_the_artefact(tmp_path: Path) -> None:
    write_provenance(tmp_path, command="specexit x", seed=3, config={"a": 1}, data_hash="f")
    found = read_json(tmp_path / "provenance.json")
    assert found["command"] == "specexit x"
    assert found["seed"] == 3
    assert found["data_hash"] == "f"
    assert "torch" in found["versions"]
