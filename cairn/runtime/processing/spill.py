"""Arrow batches on the executor's local disk, for what does not fit in a task's memory.

The files lie in Spark's own block directories, which are removed with the executor, so a killed
task leaves nothing for ever.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from cairn.errors import StorageError


class SpillDirectory:
    """A directory of one task, made at its first file and removed when the task ends."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._files = 0

    def __enter__(self) -> SpillDirectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._path is not None:
            # A task that is done does not fail by this; the executor's end removes the rest.
            shutil.rmtree(self._path, ignore_errors=True)

    def new_file(self, schema: pa.Schema) -> SpillFile:
        """Returns a new file of batches of a schema."""
        if self._path is None:
            root = os.environ["SPARK_LOCAL_DIRS"].split(",")[0]
            with _disk_errors(Path(root)):
                Path(root).mkdir(parents=True, exist_ok=True)
                self._path = Path(tempfile.mkdtemp(prefix="cairn-spill-", dir=root))
        self._files += 1
        return SpillFile(self._path / f"{self._files}.arrow", schema)


class SpillFile:
    """Batches in a file, first written, then read, any number of times.

    Attributes:
        size_bytes: of the batches in memory.
        rows: how many there are.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        self._writer: pa.RecordBatchStreamWriter | None = None
        self.size_bytes = 0
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds a batch.

        Raises:
            StorageError: the disk is full, or fails; `close` and `read` raise it, too.
        """
        with _disk_errors(self._path):
            if self._writer is None:
                self._writer = pa.ipc.new_stream(str(self._path), self._schema)
            self._writer.write_batch(batch)
        self.size_bytes += batch.nbytes
        self.rows += batch.num_rows

    def close(self) -> None:
        """Ends writing."""
        if self._writer is not None:
            with _disk_errors(self._path):
                self._writer.close()
            self._writer = None

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yields the batches, one in memory at a time. Call `close` before."""
        if self.rows:
            with (
                _disk_errors(self._path),
                pa.OSFile(str(self._path)) as source,
                pa.ipc.open_stream(source) as reader,
            ):
                yield from reader

    def remove(self) -> None:
        """Frees the disk."""
        self._path.unlink(missing_ok=True)


@contextmanager
def _disk_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"rows beyond cairn.task.memory-size cannot be kept on Spark's local disk: {error}. "
            "Free disk space there, or set spark.local.dir; nothing is lost, the task runs again",
            file=str(file),
        ) from error


class Output:
    """The output of a task until its changes are acknowledged, on disk where it is big."""

    def __init__(self, spill: SpillDirectory, memory_bytes: int) -> None:
        self._spill = spill
        self._memory_bytes = memory_bytes
        self._batches: list[pa.RecordBatch] = []
        self._size_bytes = 0
        self._file: SpillFile | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes the next batch."""
        self._batches.append(batch)
        self._size_bytes += batch.nbytes
        if self._size_bytes > self._memory_bytes:
            if self._file is None:
                self._file = self._spill.new_file(batch.schema)
            for waiting in self._batches:
                self._file.write(waiting)
            self._batches, self._size_bytes = [], 0

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yields all batches in the order of their arrival."""
        if self._file is not None:
            self._file.close()
            yield from self._file.read()
        yield from self._batches
