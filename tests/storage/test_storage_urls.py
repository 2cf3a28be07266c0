from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.errors import BadInputError
from cairn.storage import normalise_url, open_store


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("S3://bucket/a/b//", "s3://bucket/a/b"),
        ("s3a://bucket/a", "s3://bucket/a"),
        ("S3N://bucket/a/", "s3://bucket/a"),
        ("file:///data/cairn/", "file:///data/cairn"),
        ("FILE:///data/x/../cairn", "file:///data/cairn"),
        ("file:///data/two%20words", "file:///data/two%20words"),
        ("/data/cairn//", "file:///data/cairn"),
        ("//data/cairn", "file:///data/cairn"),
        ("/data/two words", "file:///data/two%20words"),
        ("/data/100%", "file:///data/100%25"),
        ("/", "file:///"),
    ],
)
def test_a_url_has_one_spelling(url: str, normal: str) -> None:
    assert normalise_url(url) == normalise_url(normal) == normal == open_store(url).url


def test_a_plain_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert normalise_url("state") == normalise_url("./state/") == f"file://{tmp_path}/state"
    assert normalise_url("~/state") == "file:///home/someone/state"


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_any_name_survives_normalising(name: str) -> None:
    once = normalise_url(f"/data/{name}")
    assert normalise_url(once) == once


@pytest.mark.parametrize(
    "url",
    [
        "",
        "\0",
        "s3b://bucket/prefix",
        "https://bucket.s3.amazonaws.com/prefix",
        "hdfs://name/prefix",
        "s3:/bucket/prefix",
        "s3://",
        "s3:///prefix",
        "s3://bucket/a/../b",
        "s3://bucket//a",
        "s3://bucket/a?versionId=1",
        "file://host/data",
        "file:/data",
    ],
)
def test_another_form_is_refused(url: str) -> None:
    with pytest.raises(BadInputError):
        open_store(url)


@pytest.mark.parametrize(
    "url", ["abfss://bucket/x", "ftp://host/x", "s3:/bucket", "file://h/x", ""]
)
def test_the_refusal_lists_the_forms(url: str) -> None:
    with pytest.raises(BadInputError, match=r"s3://bucket/prefix, file:///absolute/path or a path"):
        normalise_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAKEY:pa55word@bucket/prefix",
        "s3a://AKIAKEY:pa55word@bucket/prefix",
        "https://AKIAKEY:pa55word@host/bucket",
        "s3://bucket/prefix?X-Amz-Signature=pa55word&X-Amz-Credential=AKIAKEY",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(BadInputError) as caught:
        open_store(url)
    assert "pa55word" not in str(caught.value)
    assert "AKIAKEY" not in str(caught.value)


def run(script: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def test_boto3_is_imported_for_s3_alone() -> None:
    script = "import sys, cairn.storage as s; s.open_store({!r}); print('boto3' in sys.modules)"
    assert run(script.format("/data/cairn")) == "False\n"
    assert run(script.format("s3://bucket/prefix")) == "True\n"


def test_s3_without_boto3_says_what_to_install() -> None:
    text = run(
        "import sys; sys.modules['boto3'] = None\n"
        "import cairn.storage as s, cairn.errors as e\n"
        "try: s.open_store('s3://bucket/prefix')\n"
        "except e.BadInputError as error: print(error)\n"
    )
    assert "needs boto3; install it by: pip install 'cairn-streaming[s3]'" in text
