"""Pages of a listing are what boto3 makes of them, only sooner; other answers are left to boto3."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders
from botocore.config import Config
from botocore.exceptions import ClientError

from cairn.storage.s3_listing import read_quickly

NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
MODIFIED = "<LastModified>2026-01-02T03:04:05.678Z</LastModified>"
OBJECT = (
    f"<Contents><Key>a%2Fb+c</Key>{MODIFIED}<ETag>&quot;1&quot;</ETag><Size>7</Size></Contents>"
)
SECOND = OBJECT.replace("a%2Fb+c", "&amp;d")


def page(*entries: str) -> str:
    head = "<IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>"
    end = "<CommonPrefixes><Prefix>e/</Prefix></CommonPrefixes><EncodingType>url</EncodingType>"
    return f"<ListBucketResult {NAMESPACE}>{head}{''.join(entries)}{end}</ListBucketResult>"


class Raw:
    def __init__(self, body: str) -> None:
        self._body = body.encode()

    def stream(self) -> list[bytes]:
        return [self._body]


def listed(body: str, *, quickly: bool, status: int = 200) -> dict[str, Any]:
    """Returns what boto3 gives for an answer of the server."""
    config = Config(retries={"total_max_attempts": 1})
    session = boto3.Session("a", "b", region_name="us-east-1")
    client = session.client("s3", config=config)
    if quickly:
        read_quickly(client.meta.events)

    def answer(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        return AWSResponse(request.url, status, HTTPHeaders(), Raw(body))

    client.meta.events.register("before-send.s3", answer)  # type: ignore[arg-type]  # it may answer
    found: dict[str, Any] = dict(client.list_objects_v2(Bucket="bucket"))
    del found["ResponseMetadata"]
    return found


@pytest.mark.parametrize("entries", [(), (OBJECT,), (OBJECT, SECOND)])
def test_a_page_is_what_boto3_makes_of_it(entries: tuple[str, ...]) -> None:
    found = listed(page(*entries), quickly=True)
    assert found == listed(page(*entries), quickly=False)
    assert len(found.get("Contents", ())) == len(entries)
    if entries:
        first = found["Contents"][0]
        assert (first["Key"], first["Size"], first["ETag"]) == ("a/b c", 7, '"1"')
        assert first["LastModified"] == datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)


@pytest.mark.parametrize(
    ("part", "other"),
    [
        (MODIFIED, "<LastModified>Fri, 02 Jan 2026 03:04:05 GMT</LastModified>"),
        ("<ETag>&quot;1&quot;</ETag>", ""),
        ("2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05"),
    ],
)
def test_objects_of_another_form_are_left_to_boto3(part: str, other: str) -> None:
    body = page(OBJECT, SECOND.replace(part, other))
    assert listed(body, quickly=True) == listed(body, quickly=False)


def test_an_error_is_an_error_even_with_status_200() -> None:
    body = "<Error><Code>InternalError</Code><Message>again</Message></Error>"
    for status in (200, 500):
        with pytest.raises(ClientError):
            listed(body, quickly=True, status=status)


def test_half_a_page_is_no_page() -> None:
    whole = page(OBJECT, SECOND)
    with pytest.raises(ClientError):
        listed(whole[: len(whole) // 2], quickly=True)
