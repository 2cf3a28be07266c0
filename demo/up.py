"""`make up`: Postgres, Airflow with its UI and the word-count stream, until Ctrl-C.

    python -m demo.up [--storage s3://bucket/prefix]

What it keeps is in `build/up`; the next start continues from there.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from cairn.airflow_ext.pools import MAINTENANCE_POOL
from cairn.catalog.catalog import METASTORE_VARIABLE, Catalog
from cairn.catalog.embedded import resolve_url, stop
from cairn.catalog.migrate import migrate
from cairn.errors import CairnError
from cairn.locks import try_lock
from cairn.maintenance.storages import STORAGES_VARIABLE
from cairn.storage import normalise_url
from demo.airflow import LocalAirflow
from demo.source import stage
from demo.stream import Stream

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "up"
METASTORE = f"embedded:{BUILD / 'metastore'}"
AIRFLOW_PORT = 8080
DAG = "subsumption_cleanup"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the platform until Ctrl-C; returns 1 if a part of it failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--storage", default=str(BUILD / "storage"), help="default: %(default)s")
    storage = parser.parse_args(argv).storage
    console = Console()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    airflow = LocalAirflow(
        BUILD / "airflow",
        dags=ROOT / "dags",
        port=AIRFLOW_PORT,
        variables={METASTORE_VARIABLE: METASTORE, STORAGES_VARIABLE: normalise_url(storage)},
        scheduled=True,
    )
    return run_alone(BUILD, lambda: _run_until_stopped(airflow, storage, console), console)


def run_alone(directory: Path, work: Callable[[], int], console: Console) -> int:
    """Does the work and returns its exit status; 1 and no work if another has the directory.

    The other one's PostgreSQL is in use: the end of a second platform would end it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "lock").touch()
    with ExitStack() as held:
        if try_lock(directory / "lock", held) is None:
            console.print(f"error: the platform is running already, in {directory}. Stop it first")
            return 1
        return work()


def _run_until_stopped(airflow: LocalAirflow, storage: str, console: Console) -> int:
    try:
        _run(airflow, storage, console)
    except KeyboardInterrupt:
        console.print("\nStopping")
    except CairnError as error:
        console.print(f"error: {error}", style="red", markup=False)
        return 1
    finally:
        airflow.stop()
        stop(METASTORE)
    return 0


def _run(airflow: LocalAirflow, storage: str, console: Console) -> None:
    with console.status("Starting Postgres"):
        migrate(Catalog(resolve_url(METASTORE)))
    with console.status("Starting Airflow"):
        airflow.migrate()
        airflow.start()
        airflow.wait_ready(DAG, {MAINTENANCE_POOL: 2}, timeout_s=180)
    with console.status("Copying the source text and starting the stream"):
        if not (BUILD / "source").exists():
            stage(BUILD / "source")
        stream = Stream(_arguments(storage), BUILD / "stream.log")
    try:
        _tell(airflow, console)
        while stream.running():
            time.sleep(1)
    finally:
        stream.stop()


def _arguments(storage: str) -> list[str]:
    arguments = {
        "--source": BUILD / "source",
        "--storage": storage,
        "--metastore": METASTORE,
        "--spark-checkpoint": BUILD / "spark-checkpoint",
        "--local-dir": BUILD / "local",
        "--files-per-batch": 10,
        "--materialize-interval": "30 s",
        # So that who watches sees files go; too short for a metastore that has to be restored.
        "--file-retention": "1 min",
    }
    return [
        "--keep-running",
        "--supervised",
        *(str(word) for pair in arguments.items() for word in pair),
    ]


def _tell(airflow: LocalAirflow, console: Console) -> None:
    for line in (
        f"Airflow   {airflow.url}  user admin, password {airflow.password}",
        f"Postgres  {resolve_url(METASTORE)}",
        f"Stream    counts the words of every text file put into {BUILD / 'source'}",
        f"Look      .venv/bin/cairn jobs --metastore {METASTORE}",
        f"Rescale   .venv/bin/cairn rescale wordcount --parallelism 6 --metastore {METASTORE}",
        "Stop      Ctrl-C",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
