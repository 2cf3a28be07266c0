"""Files without a name on the local disk: for what does not fit into memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO


class Scratch:
    """Makes such files in a directory. Killed, a process leaves none of them."""

    def __init__(self, directory: Path | None, held: ExitStack) -> None:
        self._directory, self._held = directory, held

    def file(self) -> IO[bytes]:
        """Returns a new file, which is closed at the latest with all others."""
        # Python closes it, too, but only where nobody refers to it.
        return self._held.enter_context(tempfile.TemporaryFile(dir=self._directory))


@contextmanager
def scratch_in(directory: Path | None) -> Iterator[Scratch]:
    """Gives files in a directory; None: where temporary files go. Closes them at the end."""
    with ExitStack() as held:
        yield Scratch(directory, held)
