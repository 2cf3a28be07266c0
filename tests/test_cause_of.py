"""Errors, and finding them in what Spark raises."""

from __future__ import annotations

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn import cause_of
from cairn.errors import CairnError, FencedError, RefusedError, StorageError

names = st.text(
    st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters="["), min_size=1
).map(str.strip)
numbers = st.none() | st.integers(0, 2**63)


def raised_in_a_task(error: CairnError) -> RuntimeError:
    """Returns an exception with the traceback of an error as its text, as Spark makes them."""
    error.__cause__ = StorageError("a PUT failed", file="a/b.seg")
    lines = "".join(traceback.format_exception(error))
    return RuntimeError(
        f"[STREAM_FAILED] Query [id = 1] terminated with exception:\n{lines}"
        "\tat org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala:1)\n"
    )


@given(
    message=names.filter(bool),
    job=st.none() | names.filter(bool),
    checkpoint=numbers,
    file=st.none() | names.filter(bool),
    offset=numbers,
)
def test_the_error_of_a_task_is_found_in_the_text_of_sparks(
    message: str, job: str | None, checkpoint: int | None, file: str | None, offset: int | None
) -> None:
    error = RefusedError(message, job=job, checkpoint=checkpoint, file=file, offset=offset)
    found = cause_of(raised_in_a_task(error))
    assert type(found) is RefusedError
    assert vars(found) == vars(error)
    assert str(found) == str(error)


@pytest.mark.parametrize("job", ["a, checkpoint b", "a, offset 1x", "a] [job b", "[a]"])
def test_a_job_may_have_a_name_that_looks_like_other_facts(job: str) -> None:
    found = cause_of(raised_in_a_task(StorageError("failed", job=job, file="a, b.seg", offset=3)))
    assert found is not None
    assert (found.job, found.file, found.offset) == (job, "a, b.seg", 3)


def test_a_text_of_several_lines_is_found_whole() -> None:
    error = StorageError("the server says:\nno space left\nMake room", job="clicks")
    assert vars(cause_of(raised_in_a_task(error)) or error) == vars(error)
    assert cause_of(raised_in_a_task(error)) is not None


def test_causes_that_go_in_a_circle_end() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert cause_of(first) is None


def test_an_error_that_was_raised_here_is_returned_as_it_is() -> None:
    fenced = FencedError("a newer run", job="clicks")
    with pytest.raises(ValueError, match="x") as caught:
        raise ValueError("x") from fenced
    assert cause_of(caught.value) is fenced
    assert cause_of(fenced) is fenced


def test_another_error_has_none() -> None:
    assert cause_of(RuntimeError("cairn.errors.NoSuchError: x")) is None
    assert cause_of(RuntimeError("x")) is None
