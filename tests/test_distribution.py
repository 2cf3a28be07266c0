"""What `pip install` gives a user: the name, the files, the exported names, a metastore."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest

import cairn
from cairn import errors

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("LICENSE", "MANIFEST.in", "README.md", "cairn", "metastore", "pyproject.toml")
NAME = "cairn-streaming"
TEXTS = ("*.md", "*.py", "*.toml", "docs/**/*.md", "metastore/*.md", "requirements/*.txt")


def run(*command: str | Path, cwd: Path) -> str:
    """Runs a command and returns its output; fails with all of it where the command fails.

    It imports what is installed: tests of Spark have this tree on the path of their workers.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the source distribution, and the wheel that was built from it."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--no-isolation", cwd=source)
    return source / "dist"


@pytest.fixture(scope="module")
def wheel(distribution: Path) -> Path:
    [built] = distribution.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with nothing but the wheel and the locked dependencies."""
    environment = tmp_path_factory.mktemp("environment") / "venv"
    uv = Path(sys.executable).with_name("uv")
    run(uv, "venv", "--quiet", "--python", sys.executable, environment, cwd=wheel.parent)
    python = environment / "bin" / "python"
    run(uv, "pip", "install", "--no-deps", "--offline", "--python", python, wheel, cwd=wheel.parent)
    # Editable installations are found by `.pth` files, which Python does not read in there.
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin"


def test_twine_accepts_the_metadata_of_both_distributions(distribution: Path) -> None:
    built = sorted(distribution.iterdir())
    assert [file.suffix for file in built] == [".whl", ".gz"]
    run(sys.executable, "-m", "twine", "check", "--strict", *built, cwd=distribution)


def test_the_wheel_has_the_two_packages_with_their_types_and_nothing_else(wheel: Path) -> None:
    assert wheel.name.startswith("cairn_streaming-")
    names = ZipFile(wheel).namelist()
    folders = {name.split("/")[0] for name in names}
    assert {folder for folder in folders if ".dist-info" not in folder} == {"cairn", "metastore"}
    assert {name for name in names if name.endswith("py.typed")} == {
        "cairn/py.typed",
        "metastore/py.typed",
    }


def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    tracked = {
        file.relative_to(ROOT).as_posix()
        for folder in ("cairn", "metastore")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".py", ".sql", ".mako", ".typed"}
    }
    assert tracked - set(ZipFile(wheel).namelist()) == set()


def test_a_metastore_is_migrated_and_read_by_the_installed_wheel(
    installed: Path, empty_database_url: str, tmp_path: Path
) -> None:
    where = run(installed / "python", "-c", "import cairn; print(cairn.__file__)", cwd=tmp_path)
    assert Path(where).is_relative_to(installed.parent)
    address = ("--metastore", empty_database_url)
    run(installed / "cairn", "db", "migrate", *address, cwd=tmp_path)
    assert run(installed / "cairn", "jobs", "--json", *address, cwd=tmp_path).strip() == "[]"


def test_users_import_the_job_what_runs_it_and_the_errors() -> None:
    assert cairn.__all__ == ["Job", "RestartPolicy", "cause_of", "run"]
    assert set(errors.__all__) == {
        "BadInputError",
        "CairnError",
        "CorruptSegmentError",
        "DamagedStateError",
        "FencedError",
        "MetastoreError",
        "OutcomeUnknownError",
        "RefusedError",
        "ReplacedError",
        "StorageError",
        "StoreFailedError",
        "cause_of",
    }
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert set(errors.__all__) == defined | {"cause_of"}


def test_the_distribution_is_named_alike_everywhere() -> None:
    assert metadata(NAME)["Name"] == NAME
    files = {file for pattern in TEXTS for file in ROOT.glob(pattern)}
    files |= {file for folder in SOURCES for file in (ROOT / folder).rglob("*.py")}
    wrong = [
        f"{file.relative_to(ROOT)}: {line}"
        for file in sorted(files)
        for line in file.read_text().splitlines()
        if re.search(r"install \S*\bcairn\b(?!-streaming)", line)
    ]
    assert wrong == [], "`cairn` in a package index is somebody else's"
