"""The documents say what the code does: options, defaults, files, tests and commands."""

from __future__ import annotations

import ast
import os
import re
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path

import pytest

from cairn.catalog.metrics import METRICS, Metric, MetricKind
from cairn.cli.prometheus import to_text
from cairn.settings import OPTIONS, Settings
from tests.layers import BASICS, MAY_IMPORT, RUNTIME, VALUES

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    file.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "metastore/*.md", "tests/*.md")
    for file in ROOT.glob(pattern)
)
ADRS = sorted((ROOT / "docs" / "adr").glob("*.md"))
FOLDERS = "cairn|metastore|spark_jobs|dags|demo|tests|docs|benchmarks"


def read(document: str) -> str:
    return (ROOT / document).read_text()


def prose(document: str) -> str:
    """Returns a document without its code blocks."""
    return re.sub(r"^```.*?^```", "", read(document), flags=re.DOTALL | re.MULTILINE)


def option_rows() -> dict[str, list[str]]:
    """Returns the cells of the table of options by key."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in read("docs/options.md").splitlines()
        if line.startswith("| `cairn.")
    ]
    return {row[0].strip("`"): row for row in rows}


def metric_rows() -> list[list[str]]:
    """Returns the cells of the tables of metrics."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in read("docs/metrics.md").splitlines()
        if line.startswith("| `") and line.count(" | ") == len(fields(Metric)) - 1
    ]


def rows_of(document: str) -> list[list[str]]:
    """Returns the cells of all tables in a document, headings included, row by row."""
    return [
        [cell.strip() for cell in line.strip("|").split(" |")]
        for line in read(document).splitlines()
        if line.startswith("| ")
    ]


def import_cell(packages: set[str]) -> str:
    """Returns how ARCHITECTURE.md lists the packages that may be imported."""
    values, others = (["values"], packages - BASICS) if packages >= BASICS else ([], packages)
    return ", ".join([*values, *(f"`{name}`" for name in sorted(others))])


def make_targets(document: str) -> set[str]:
    return set(re.findall(r"(?:`|^)make ([a-z-]+)", read(document), flags=re.MULTILINE))


def anchors(document: str) -> set[str]:
    """Returns the anchors that GitHub gives the headings."""
    headings = re.findall(r"^#+ (.+)$", prose(document), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@cache
def defined_tests() -> set[str]:
    return {
        node.name
        for file in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
    }


def test_there_are_documents() -> None:
    assert {"README.md", "ARCHITECTURE.md", "CHANGELOG.md", "docs/protocol.md"} <= set(DOCUMENTS)


def test_every_option_is_documented_and_no_other() -> None:
    assert option_rows().keys() == OPTIONS.keys()


@pytest.mark.parametrize("key", OPTIONS)
def test_an_options_default_and_range_are_those_of_the_code(key: str) -> None:
    field, _, allowed = OPTIONS[key]
    _, default, documented, _ = option_rows()[key]
    assert documented == allowed
    if default.startswith("["):  # a link to the rule by which it is found
        assert asdict(Settings())[field] is None
        return
    if "XDG_CACHE_HOME" in os.environ:
        default = default.replace("~/.cache", os.environ["XDG_CACHE_HOME"])
    settings = Settings.from_options({key: default.strip("`")})
    defaults = asdict(Settings()) | {"local_dir": str(Settings().local_directory)}
    assert asdict(settings)[field] == defaults[field]


def test_the_default_local_directory_is_that_of_the_process_that_asks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made_on_the_driver = Settings()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert made_on_the_driver.local_directory == tmp_path / "cairn"


def test_every_metric_is_documented_as_the_code_describes_it() -> None:
    assert metric_rows() == [
        [f"`{m.name}`", m.kind.value, m.scope.value, m.unit, m.meaning] for m in METRICS
    ]


def test_the_names_in_prometheus_that_are_documented_follow_the_rule() -> None:
    examples = re.findall(r"^\| `([\w.]+)` \| `(\w+)\{", read("docs/metrics.md"), re.MULTILINE)
    kinds = {m.name: "quantile" if m.kind is MetricKind.HISTOGRAM else m.kind for m in METRICS}
    no_labels = dict.fromkeys(("job_name", "tm_id", "subtask", "action", "quantile"))
    assert examples
    for name, sample in examples:
        text = to_text([{**no_labels, "metric": name, "kind": kinds[name], "value": 1}])
        assert f"\n{sample} 1.0\n" in text


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files_and_headings(document: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", prose(document))
    for link in links:
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / document).parent / path if path else ROOT / document
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(target.relative_to(ROOT).as_posix()), f"no heading for {link}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_are_named_exist(document: str) -> None:
    named = re.findall(rf"`((?:{FOLDERS})/[\w./-]+)`", prose(document))
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_tests_that_are_named_exist(document: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", prose(document)))
    assert named - defined_tests() == set()


def test_every_make_target_is_documented_and_no_other() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", read("Makefile"), flags=re.MULTILINE))
    assert make_targets("docs/developing.md") == targets
    assert make_targets("README.md") <= targets


def test_every_invariant_names_a_test() -> None:
    rows = [row for row in rows_of("docs/invariants.md") if row[0] != "must hold"]
    assert len(rows) > 60
    assert [row for row in rows if not re.search(r"`(test_\w+|tests/[\w./]+)`", row[1])] == []


def test_the_table_of_imports_is_that_of_the_tests() -> None:
    expected = [
        [f"`{package}`", import_cell(allowed)]
        for package, allowed in MAY_IMPORT.items()
        if package not in VALUES and (ROOT / package.split(".")[0]).is_dir()
    ]
    rows = rows_of("ARCHITECTURE.md")
    start = rows.index(["package", "may import, besides itself"]) + 1
    assert rows[start : start + len(expected)] == expected


def test_the_table_of_the_runtimes_folders_is_that_of_the_tests() -> None:
    found = {row[0]: row[2] for row in rows_of("ARCHITECTURE.md") if len(row) == 3}
    assert found.pop("folder") == "imports"
    assert found == {
        f"`cairn/runtime/{folder}`": import_cell(allowed) for folder, allowed in RUNTIME.items()
    }


def test_every_package_has_a_line_in_the_architecture() -> None:
    named = {name for row in rows_of("ARCHITECTURE.md") for name in re.findall("`(.+?)`", row[0])}
    folders = [*ROOT.glob("*/"), *(ROOT / "cairn").glob("*/"), *(ROOT / "cairn/catalog").glob("*/")]
    packages = {f.relative_to(ROOT).as_posix() for f in folders if any(f.glob("*.py"))}
    assert packages - named - {"cairn", "tests"} == set()


@pytest.mark.parametrize(("document", "most"), [("README.md", 150), ("ARCHITECTURE.md", 200)])
def test_what_is_read_first_is_short(document: str, most: int) -> None:
    assert len(read(document).splitlines()) <= most


@pytest.mark.parametrize("file", ADRS, ids=lambda file: file.stem[:4])
def test_a_decision_has_its_number_its_status_and_its_four_sections(file: Path) -> None:
    lines = file.read_text().splitlines()
    assert lines[0].startswith(f"# {file.stem[:4]}: ")
    status = re.fullmatch(
        r"Status: (?:Accepted|Superseded by \d{4}"
        r"|Accepted, superseded in part by \d{4}(?:, \d{4})*(?: and \d{4})?)",
        lines[2],
    )
    assert status, lines[2]
    decisions = {adr.stem[:4]: adr.read_text() for adr in ADRS}
    for later in re.findall(r"\d{4}", lines[2]):
        assert "Supersedes" in decisions[later]
        assert f"[{file.stem[:4]}]({file.name})" in decisions[later]
    assert [line for line in lines if line.startswith("## ")] == [
        "## Context",
        "## Decision",
        "## Consequences",
        "## A change violates this when",
    ]


def test_no_two_decisions_have_one_number() -> None:
    numbers = [int(file.stem[:4]) for file in ADRS]
    assert numbers == sorted(set(numbers))
