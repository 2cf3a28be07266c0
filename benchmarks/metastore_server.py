"""What the benchmark asks the metastore's server itself: CPU time, sizes, the plans' statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psutil
from sqlalchemy import NullPool, create_engine, text


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """One table: its rows, the bytes of these alone, and of its files on disk."""

    rows: int
    row_bytes: int
    heap_bytes: int
    index_bytes: int


class Server:
    """One connection to a database of a server on this machine, which commits each statement."""

    def __init__(self, url: str) -> None:
        engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        self._connection = engine.connect()
        backend = self.read("SELECT pg_backend_pid()")[0][0]
        self._postmaster = psutil.Process(psutil.Process(backend).ppid())

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def read(self, sql: str, **values: object) -> list[Any]:
        """Returns the rows of a query."""
        return list(self._connection.execute(text(sql), values))

    def execute(self, sql: str) -> None:
        """Executes a statement that has no rows."""
        self._connection.execute(text(sql))

    def cpu_s(self) -> float:
        """Returns the CPU time of all of the server's processes, those that have ended too."""
        own = self._postmaster.cpu_times()
        total: float = own.user + own.system + own.children_user + own.children_system
        for child in self._postmaster.children():
            try:
                used = child.cpu_times()
            except psutil.NoSuchProcess:  # it has ended, and is counted by the next call
                continue
            total += used.user + used.system
        return total

    def wal_bytes(self) -> int:
        """Returns how much write-ahead log there ever was."""
        [(found,)] = self.read("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")
        return int(found)

    def sizes(self) -> dict[str, TableSize]:
        """Returns the size of each table of the metastore."""
        tables = self.read(
            "SELECT relname, pg_table_size(oid), pg_indexes_size(oid) FROM pg_class"
            " WHERE relnamespace = CAST('cairn' AS regnamespace) AND relkind = 'r'"
        )
        found = {}
        for name, heap_bytes, index_bytes in tables:
            [(rows, row_bytes)] = self.read(
                "SELECT count(*), coalesce(sum(pg_column_size(t.*)), 0)"  # noqa: S608 - of pg_class
                f" FROM cairn.{name} AS t"
            )
            found[name] = TableSize(
                rows=rows,
                row_bytes=int(row_bytes),
                heap_bytes=heap_bytes,
                index_bytes=index_bytes,
            )
        return found
