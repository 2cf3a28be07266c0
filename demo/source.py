"""The demo's input: the source text of the installed Python standard library."""

from __future__ import annotations

import re
import shutil
import sysconfig
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from spark_jobs.wordcount import WORD

WINDOW_S = 600


def stage(directory: Path) -> list[Path]:
    """Copies the library's modules into one directory and returns the copies.

    Spark's file source passes over names that begin with an underscore, so `__init__.py` and its
    like get their whole dotted name.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    directory.mkdir(parents=True)
    staged = []
    for module in sorted(root.rglob("*.py")):
        parts = module.relative_to(root).parts
        if "site-packages" in parts or "dist-packages" in parts:
            continue
        staged.append(Path(shutil.copy(module, directory / ".".join(("stdlib", *parts)))))
    return staged


def count_words(files: list[Path], advance: Callable[[], object]) -> Counter[tuple[str, str]]:
    """Returns the count by word and start of window (ISO 8601, UTC), made without Spark."""
    find_words = re.compile(WORD).findall
    counts: Counter[tuple[str, str]] = Counter()
    for file in files:
        lines = file.read_bytes().decode("utf-8", "replace").split("\n")
        for first in range(0, len(lines), WINDOW_S):
            start = datetime.fromtimestamp(first, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            words = find_words("\n".join(lines[first : first + WINDOW_S]))
            counts.update((word, start) for word in words)
        advance()
    return counts
