"""Diffs: blocks, terminators, and what git apply and patch(1) say of the same text."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import zlib
from base64 import b85encode
from pathlib import Path

import pytest

from specexit import Committer, contract

from .streams import answer_of, check

PATCH = contract("patch")
PLAIN = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
OTHER = PLAIN.replace("/x", "/y")
GIT = "diff --git a/x b/x\nindex 1234567..89abcde 100644\n" + PLAIN
RENAME = "diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n"
QUOTED = (
    'diff --git "a/\\303\\251" "b/\\303\\252"\nsimilarity index 60%\nrename from "\\303\\251"\n'
    'rename to "\\303\\252"\n--- "a/\\303\\251"\n+++ "b/\\303\\252"\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n'
)
BINARY = (
    "diff --git a/x b/x\nnew file mode 100644\nindex 0000000..2e65efe\n"
    f"GIT binary patch\nliteral 1\nI{b85encode(zlib.compress(bytes(1)), pad=True).decode()}\n\n"
)

BLOCKS = {
    # name: (text, the answer, where it commits or None for the end)
    "fence": (f"Here:\n```diff\n{PLAIN}```\nDone", PLAIN, "```\nDone"),
    "fence with prose": (f"```diff\n# edit\n{PLAIN}and\n{GIT}```\n", PLAIN + GIT, "```\n"),
    "unclosed fence": (f"```diff\n{PLAIN}", PLAIN, None),
    "raw": (PLAIN, PLAIN, None),
    "raw before prose": (PLAIN + "Done.", PLAIN, "Done."),
    "raw before a list": (PLAIN + "\n- item", PLAIN, " item"),
    "raw before a fence": (PLAIN + "```python\n", PLAIN, "```python\n"),
    "two files": (GIT + OTHER + "ok", GIT + OTHER, "ok"),
    "blank between files": (PLAIN + "\n" + OTHER, PLAIN + "\n" + OTHER, None),
    "deleted line of dashes": (
        "--- a/x\n+++ b/x\n@@ -1,2 +1,1 @@\n a\n--- a/y\n",
        "--- a/x\n+++ b/x\n@@ -1,2 +1,1 @@\n a\n--- a/y\n",
        None,
    ),
    "lone CR": (
        "--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n a\n+a\rb\n",
        "--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n a\n+a\rb\n",
        None,
    ),
    "CRLF": (PLAIN.replace("\n", "\r\n"), PLAIN.replace("\n", "\r\n"), None),
    "no newline marker": (
        PLAIN + "\\ No newline at end of file\nDone",
        PLAIN + "\\ No newline at end of file\n",
        "Done",
    ),
    "rename": (RENAME + "Done", RENAME, "Done"),
    "rename and edit": (
        RENAME + PLAIN.replace("b/x", "b/y"),
        RENAME + PLAIN.replace("b/x", "b/y"),
        None,
    ),
    "rename of a quoted path": (
        QUOTED,
        QUOTED,
        None,
    ),
    "mode change": (
        "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n",
        "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n",
        None,
    ),
    "git binary": (BINARY + "Done", BINARY, "Done"),
    "new file": (
        "--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n",
        "--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n",
        None,
    ),
    "empty context line": (
        "--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n\n-b\n+c\n\nDone",
        "--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n\n-b\n+c\n\n",
        "Done",
    ),
    "format-patch": (PLAIN + "-- \n2.39.5\n", PLAIN, "\n2.39.5\n"),
    "rule before": (f"---\ntext\n--- x\n{PLAIN}", PLAIN, None),
    "broken, then mended": (PLAIN.replace("-1,2", "-1,3") + OTHER + f"Sorry:\n{GIT}", GIT, None),
    "broken fence, then a good one": (
        "```\n" + PLAIN.replace("-1,2", "-1,9") + f"```\n```\n{PLAIN}```\n",
        PLAIN,
        "```\n",
    ),
}

BROKEN = {
    "one line too many": PLAIN + "+d\n",
    "one line too few": PLAIN.replace("-1,2", "-1,3") + "Done\n",
    "cut in a hunk": PLAIN[:-3],
    "no change": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n a\n",
    "new file with old lines": "--- /dev/null\n+++ b/x\n@@ -1 +1 @@\n-b\n+a\n",
    "deleted file with new lines": "--- a/x\n+++ /dev/null\n@@ -1 +1 @@\n-b\n+a\n",
    "names that differ": "diff --git a/x b/x\n" + OTHER,
    "hunk without a file": "@@ -1 +1 @@\n-b\n+a\n",
    "binary that is not there": "diff --git a/x b/x\nBinary files a/x and b/x differ\n",
    "deleted binary after a good file": (
        PLAIN + "diff --git a/y b/y\ndeleted file mode 100644\nindex 1..0\nBinary files a/y and "
        "/dev/null differ\n"
    ),
    "binary of another size": BINARY.replace("literal 1", "literal 2"),
    "rename of another file": RENAME.replace("from x", "from z") + PLAIN.replace("b/x", "b/y"),
    "git header alone": "diff --git a/x b/x\nindex 1..2 100644\n",
    "marker cut off": PLAIN + "\\ No\n",
}


@pytest.mark.parametrize("name", BLOCKS)
def test_patch_reads(name):
    """https://github.com/matiasb/python-unidiff/issues/104 (a lone CR ends no line)"""
    text, answer, rest = BLOCKS[name]
    commit = check(PATCH, text, rounds=3)
    assert commit.answer == answer
    if rest is None:
        assert Committer(PATCH, thinking=False).feed(text) is None
    elif text.endswith("```\n") or "```\nDone" in text:
        assert text[commit.position - 3 :] == rest or text[commit.position :] == rest[3:]
    else:
        assert text[commit.position :] == rest


@pytest.mark.parametrize("name", BROKEN)
def test_broken_blocks_are_no_answer(name):
    assert answer_of(PATCH, BROKEN[name], rounds=3) is None
    assert answer_of(PATCH, f"```diff\n{BROKEN[name]}```\n", rounds=3) is None


def test_only_fences_count_on_request():
    fenced = contract({"type": "patch", "fenced": True})
    assert answer_of(fenced, PLAIN + "Done") is None
    assert answer_of(fenced, f"{OTHER}So:\n```diff\n{PLAIN}```\n") == PLAIN


def test_a_block_that_could_continue_waits():
    committer = Committer(PATCH, thinking=False)
    for piece in (PLAIN, "@", "@", " -9 +9 @@\n-q\n+r\n", "d", "iff --git a/x b/x\n"):
        assert committer.feed(piece) is None
    assert not committer.is_completed


def test_size_is_bounded():
    small = contract({"type": "patch", "max_chars": 60})
    long = PLAIN.replace("+c", "+" + "c" * 100)
    assert answer_of(small, long + "Done\n" + PLAIN) == PLAIN
    assert answer_of(small, "x" * 500 + "\n" + PLAIN) == PLAIN


def test_equality_ignores_blank_lines_around():
    assert PATCH.equal(PLAIN, "\n" + PLAIN + "\n\n")
    assert not PATCH.equal(PLAIN, OTHER)
    assert not PATCH.valid("no diff")


def git_accepts(patch: str, folder: Path, *options: str) -> bool:
    run = subprocess.run(
        ["git", "apply", *(options or ("--numstat",)), "-"],
        input=patch.encode(),
        cwd=folder,
        capture_output=True,
        check=False,
    )
    return run.returncode == 0


def mutate(patch: str, rng: random.Random) -> tuple[str, str]:
    """A mutation of a diff and its kind."""
    kind = rng.choice(["count", "drop", "cut", "crlf", "lone cr", "marker", "prefix", "join"])
    lines = patch.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    if kind == "count":
        hunks = [i for i, line in enumerate(lines) if line.startswith("@@ -")]
        at = rng.choice(hunks)
        lines[at] = re.sub(
            r",(\d+) ", lambda m: f",{int(m[1]) + rng.choice([-1, 1])} ", lines[at], count=1
        )
    elif kind == "drop":
        del lines[at]
    elif kind == "cut":
        return patch[: rng.randrange(len(patch))], kind
    elif kind == "crlf":
        return patch.replace("\n", "\r\n"), kind
    elif kind == "lone cr":
        at = rng.choice([i for i, line in enumerate(lines) if re.match(r"[+\- ](?![+-])", line)])
        lines[at] = lines[at][:-1] + "\rz\n"
    elif kind == "marker":
        lines.append("\\ No newline at end of file\n")
    elif kind == "prefix":
        lines[at] = lines[at][1:]
    else:
        lines[at] = lines[at][:-1]
    return "".join(lines), kind


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_agrees_with_git_on_real_diffs_and_mutations(records, tmp_path):
    rng = random.Random(5)
    diffs = [r["output"] for r in records("devin_diffs_dev") if "Binary files" not in r["output"]]
    agreed: dict[str, int] = {}
    for patch in rng.sample(diffs, 40):
        assert check(PATCH, patch, rounds=1).answer == patch
        for _ in range(4):
            mutated, kind = mutate(patch, rng)
            ours = PATCH.project(mutated, thinking=False)
            theirs = git_accepts(mutated, tmp_path)
            if ours is not None:
                assert git_accepts(ours, tmp_path), (kind, mutated)
            # git passes over lines that belong to no hunk; here they break the block.
            if kind not in STRICTER:
                assert (ours is not None) == theirs, (kind, mutated)
            agreed[kind] = agreed.get(kind, 0) + ((ours is not None) == theirs)
    assert sum(agreed.values()) > 100


STRICTER = ("count", "prefix", "join", "drop")


def preimage(patch: str) -> dict[str, str]:
    """Files that the patch applies to: its old lines where it says, other lines elsewhere."""
    files: dict[str, dict[int, str]] = {}
    number = 0
    for line in patch.splitlines():
        if line.startswith("--- "):
            files[line[6:]] = lines = {}
        elif found := re.match(r"@@ -(\d+)", line):
            number = int(found[1])
        elif line[:1] in (" ", "-") and number:
            lines[number] = line[1:]
            number += 1
        elif line.startswith("diff "):
            number = 0
    return {
        name: "".join(f"{lines.get(n, f'other {n}')}\n" for n in range(1, max(lines) + 1))
        for name, lines in files.items()
        if lines
    }


@pytest.mark.skipif(None in (shutil.which("git"), shutil.which("patch")), reason="no git or patch")
def test_committed_real_diffs_apply(records, tmp_path):
    rng = random.Random(6)
    diffs = [r["output"] for r in records("devin_diffs_dev") if "\n+++ b/" in r["output"]]
    plain = [d for d in diffs if not re.search(r"/dev/null|Binary|rename|mode 1", d)]
    for index, patch in enumerate(rng.sample(plain, 12)):
        folder = tmp_path / str(index)
        for name, text in preimage(patch).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        answer = answer_of(PATCH, f"```diff\n{patch}```\nThat mends it.", rounds=1)
        assert git_accepts(answer, folder, "--check")
        run = subprocess.run(
            ["patch", "-p1", "--dry-run", "--force"],
            input=answer.encode(),
            cwd=folder,
            capture_output=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("name", BLOCKS)
def test_git_reads_the_answers_too(name, tmp_path):
    assert git_accepts(BLOCKS[name][1], tmp_path)


def test_a_line_that_names_no_file_begins_nothing():
    assert answer_of(PATCH, f"--- \n{PLAIN}") == PLAIN
    assert answer_of(PATCH, f"```\n--- \t\n```\n{PLAIN}") == PLAIN
