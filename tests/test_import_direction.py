"""What a parser can check of ARCHITECTURE.md: who imports whom, and how long things are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.layers import MAY_IMPORT, RUNTIME

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("cairn", "metastore", "spark_jobs", "dags", "demo")
MOST_FLOORS = 6
MOST_MODULE_LINES = 399
MOST_FUNCTION_LINES = 50

LIBRARIES = {
    "airflow": ("cairn/airflow_ext/", "dags/"),
    "pyspark": ("cairn/runtime/", "spark_jobs/", "demo/"),
    "boto3": ("cairn/storage/s3_client.py",),
    "botocore": ("cairn/storage/s3.py", "cairn/storage/s3_"),
    "fcntl": ("cairn/locks.py",),
    "pandas": ("cairn/runtime/processing/frames.py",),
    "prometheus_client": ("cairn/cli/prometheus.py", "cairn/cli/endpoint.py"),
}
DELETES = {
    "delete_many",
    "remove_directory",
    "remove_empty",
    "delete_unfinished",
    "abort_uploads",
}
UNSAFE_ON_READ = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}


@cache
def modules() -> dict[str, ast.Module]:
    """Returns the parsed modules by path from the root."""
    return {
        file.relative_to(ROOT).as_posix(): ast.parse(file.read_text())
        for folder in FOLDERS
        for file in sorted((ROOT / folder).rglob("*.py"))
    }


def imports(tree: ast.Module) -> Iterator[str]:
    """Yields the dotted name of everything that is imported, lazily too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            yield from (f"{start}.{alias.name}" for alias in node.names)


def imported() -> Iterator[tuple[str, str]]:
    """Yields each module's path with each name that it imports."""
    for path, tree in modules().items():
        yield from ((path, name) for name in imports(tree))


def package_of(name: str) -> str | None:
    """Returns the package of MAY_IMPORT that a dotted name belongs to; None for a library."""
    parts = name.split(".")
    starts = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((start for start in starts if start in MAY_IMPORT), None)


def owner_of(path: str) -> str:
    """Returns the package that a module's path belongs to."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package = package_of(name)
    assert package is not None
    return package


def test_every_folder_is_looked_at() -> None:
    seen = {owner_of(path) for path in modules()}
    assert seen >= MAY_IMPORT.keys()
    fronts = [path for path in modules() if owner_of(path) == "cairn"]
    assert fronts == ["cairn/__init__.py"], "a new package needs a line in MAY_IMPORT"


def test_packages_import_in_one_direction_only() -> None:
    wrong = [
        f"{path} imports {name}"
        for path, name in imported()
        if (package := package_of(name)) is not None
        and package != owner_of(path)
        and package not in MAY_IMPORT[owner_of(path)]
    ]
    assert wrong == []


def test_the_runtimes_folders_import_downwards_only() -> None:
    wrong = [
        f"{path} imports {name}"
        for path, name in imported()
        if path.startswith("cairn/runtime/") and path.count("/") == 3
        for folder in [path.split("/")[2]]
        for other in RUNTIME.keys() - RUNTIME[folder] - {folder}
        if name.startswith(f"cairn.runtime.{other}.")
    ]
    assert wrong == []


def imports_within(package: str, depth: int | None = None) -> dict[str, set[str]]:
    """Returns which modules of a package each one imports; by their first `depth` names only."""
    names = {path.removesuffix(".py").removesuffix("/__init__") for path in modules()}
    known = {name.replace("/", ".") for name in names}
    graph: dict[str, set[str]] = {}
    for path, name in imported():
        importer = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        found = name if name in known else name.rpartition(".")[0]
        one, other = (".".join(each.split(".")[:depth]) for each in (importer, found))
        if (
            found in known
            and one != other
            and one.startswith(package)
            and other.startswith(package)
        ):
            graph.setdefault(one, set()).add(other)
    return graph


def test_no_module_imports_itself_in_a_circle() -> None:
    TopologicalSorter(imports_within("cairn")).prepare()  # its error names the circle


def test_the_runtimes_folders_are_few_floors_without_a_circle() -> None:
    graph, floors = imports_within("cairn.runtime.", depth=3), dict[str, int]()
    for folder in TopologicalSorter(graph).static_order():
        floors[folder] = 1 + max((floors[below] for below in graph.get(folder, ())), default=0)
    assert 1 < max(floors.values()) <= MOST_FLOORS


def test_imports_are_absolute() -> None:
    assert [f"{path} imports {name}" for path, name in imported() if name.startswith(".")] == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_heavy_library_is_imported_only_where_it_belongs(library: str) -> None:
    users = {path for path, name in imported() if name.split(".")[0] == library}
    assert users, f"nobody imports {library} any more: take it out of LIBRARIES"
    assert {path for path in users if not path.startswith(LIBRARIES[library])} == set()


def test_pandas_is_imported_late() -> None:
    early = [
        path
        for path, tree in modules().items()
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any(name.split(".")[0] == "pandas" for name in imports(ast.Module([node], [])))
    ]
    assert early == [], "importing pandas costs a second, and only one of the two forms needs it"


def test_only_the_plan_may_unpickle_and_never_from_storage() -> None:
    users = {path for path, name in imported() if UNSAFE_ON_READ & set(name.split("."))}
    assert users == {
        "cairn/runtime/processing/operator_spec.py",
        "cairn/runtime/driver/build_plan.py",
    }
    unpickled = {
        f"{path}: {function.name}: {ast.unparse(node.args[0])}"
        for path in users
        for function in ast.walk(modules()[path])
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("load", "loads")
    }
    # The processor that the driver has pickled, in the driver itself and in the tasks of its plan.
    assert unpickled == {
        "cairn/runtime/processing/operator_spec.py: new_processor: self.processor",
        "cairn/runtime/driver/build_plan.py: _declare: dumped",
    }


def test_only_the_deleter_deletes_objects() -> None:
    users = {
        path
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in DELETES
    }
    # The store itself removes the probe that it has just written to see whether it may write.
    assert users == {"cairn/maintenance/deleter.py", "cairn/storage/store.py"}


def test_modules_have_fewer_than_400_lines() -> None:
    lines = {path: len((ROOT / path).read_text().splitlines()) for path in modules()}
    assert {path: n for path, n in lines.items() if n > MOST_MODULE_LINES} == {}


def test_functions_have_at_most_50_lines() -> None:
    lines = {
        f"{path}: {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: n for name, n in lines.items() if n > MOST_FUNCTION_LINES} == {}


def test_records_of_four_fields_and_more_are_keyword_only() -> None:
    records = [
        (f"{path}: {node.name}", ast.unparse(decorator))
        for path, tree in modules().items()
        if path.startswith(("cairn/", "metastore/"))
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for decorator in node.decorator_list
        if ast.unparse(decorator).startswith("dataclass")
        and sum(isinstance(statement, ast.AnnAssign) for statement in node.body) >= 4
    ]
    assert len(records) > 20
    assert [name for name, decorator in records if "kw_only=True" not in decorator] == []
