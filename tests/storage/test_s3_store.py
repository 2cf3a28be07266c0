"""What is S3's own: lost answers, bad setups, pages. Faults come from a proxy before the server."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.mark import ParameterSet
from hypothesis import given
from hypothesis import strategies as st

from cairn import Job
from cairn.errors import BadInputError, CairnError, RefusedError, StorageError
from cairn.storage import open_store
from cairn.storage.chunks import ChunkReader

if TYPE_CHECKING:
    from tests.storage.conftest import Exchange, FaultyProxy

PATH = "job-1/shared/a.seg"


def moto_fails(reason: str) -> ParameterSet:
    return pytest.param("moto", marks=pytest.mark.xfail(strict=True, reason=reason))


def pass_on(exchange: Exchange) -> None:
    exchange.pass_on()


def hang_up(exchange: Exchange) -> None:
    exchange.hang_up()


def lose_answer(exchange: Exchange) -> None:
    exchange.forward()
    exchange.hang_up()


def test_a_put_whose_answer_was_lost_succeeds(proxy: FaultyProxy, s3_url: str) -> None:
    store = open_store(s3_url)
    proxy.faults["PUT"] = [lose_answer]
    store.put(PATH, [b"mine"])
    assert [request.split()[0] for request in proxy.requests] == ["PUT", "PUT", "HEAD"]
    assert store.get(PATH) == b"mine"


@pytest.mark.parametrize("other", [b"none", b"longer than mine"])
def test_a_retried_put_over_another_object_is_refused(
    proxy: FaultyProxy, s3_url: str, other: bytes
) -> None:
    store = open_store(s3_url)
    store.put(PATH, [other])
    proxy.faults["PUT"] = [hang_up]
    with pytest.raises(RefusedError, match="already has") as caught:
        store.put(PATH, [b"mine"])
    assert caught.value.file == PATH
    assert store.get(PATH) == other


@pytest.mark.parametrize(
    "s3_url", [moto_fails("moto takes any body for any checksum"), "server"], indirect=True
)
def test_bytes_changed_on_the_way_are_not_stored(proxy: FaultyProxy, s3_url: str) -> None:
    store = open_store(s3_url)
    proxy.faults["PUT"] = [change_body]
    with pytest.raises(StorageError, match="cannot write"):
        store.put(PATH, [b"mine"])
    assert list(store.list("")) == []


def change_body(exchange: Exchange) -> None:
    exchange.body = exchange.body[:-1] + b"X"
    exchange.pass_on()


def test_an_answer_cut_short_is_a_storage_error(proxy: FaultyProxy, s3_url: str) -> None:
    store = open_store(s3_url)
    store.put(PATH, [b"x" * 100_000])
    proxy.faults["GET"] = [cut_answer]
    with pytest.raises(StorageError, match="cannot read") as caught:
        store.get(PATH, 5, 50_000)
    assert (caught.value.file, caught.value.offset) == (PATH, 5)


def cut_answer(exchange: Exchange) -> None:
    status, headers, body = exchange.forward()
    exchange.answer(status, headers, body[:1000])
    exchange.hang_up()


def test_a_server_in_trouble_is_a_retryable_error(proxy: FaultyProxy, s3_url: str) -> None:
    store = open_store(s3_url)
    proxy.faults["PUT"] = [hang_up] * 3
    with pytest.raises(StorageError) as caught:
        store.put(PATH, [b"mine"])
    assert caught.value.retryable
    assert len(proxy.requests) == 3
    store.put(PATH, [b"mine"])


FORK = """
import os, sys
from cairn.storage import open_store
store = open_store(sys.argv[1])
store.put("a", [b"content"])
child = os.fork()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert store.get("a") == b"content"
"""


def test_a_forked_child_has_a_connection_of_its_own(proxy: FaultyProxy, s3_url: str) -> None:
    subprocess.run([sys.executable, "-c", FORK, s3_url], check=True, timeout=60)
    before_fork, child, parent = proxy.client_ports
    assert child != before_fork
    assert parent == before_fork


def test_list_asks_for_a_page_when_it_is_needed(proxy: FaultyProxy, s3_url: str) -> None:
    proxy.faults["GET"] = [first_page, last_page]
    listing = open_store(s3_url).list("a/")
    assert proxy.requests == []
    assert next(listing).path == "a/0"
    assert len(proxy.requests) == 1
    assert [stored.path for stored in listing] == ["a/1"]
    assert "continuation-token=next" in proxy.requests[1]


def first_page(exchange: Exchange) -> None:
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>next</NextContinuationToken>"
    answer_listing(exchange, "a/0", more)


def last_page(exchange: Exchange) -> None:
    answer_listing(exchange, "a/1", "<IsTruncated>false</IsTruncated>")


def answer_listing(exchange: Exchange, path: str, more: str) -> None:
    body = (
        f"<ListBucketResult><Contents><Key>some/prefix/{path}</Key><Size>1</Size>"
        f"<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>{more}</ListBucketResult>"
    )
    exchange.answer(200, {"Content-Type": "application/xml"}, body.encode())


def test_deletes_that_fail_are_told_by_path(proxy: FaultyProxy, s3_url: str) -> None:
    proxy.faults["POST"] = [some_deleted]
    failed = open_store(s3_url).delete_many(["a", "b", "c"])
    assert sorted(failed) == ["b", "c"]
    assert failed["b"] == "InternalError: try again"
    assert "does not say" in failed["c"]


def some_deleted(exchange: Exchange) -> None:
    body = (
        "<DeleteResult><Deleted><Key>some/prefix/a</Key></Deleted><Error><Key>some/prefix/b</Key>"
        "<Code>InternalError</Code><Message>try again</Message></Error></DeleteResult>"
    )
    exchange.answer(200, {"Content-Type": "application/xml"}, body.encode())


def test_deletes_go_out_in_requests_of_1000(proxy: FaultyProxy, s3_url: str) -> None:
    assert open_store(s3_url).delete_many([f"missing/{i}" for i in range(2001)]) == {}
    assert len(proxy.requests) == 3


@pytest.mark.parametrize("s3_url", ["moto"], indirect=True)
def test_a_store_that_overwrites_objects_is_refused(proxy: FaultyProxy, s3_url: str) -> None:
    """On moto alone: the real server sees that a signed header is gone."""
    proxy.faults["PUT"] = [pass_on, ignore_condition]
    store = open_store(s3_url)
    with pytest.raises(BadInputError, match="overwrites existing objects"):
        store.check_writable()
    assert list(store.list("")) == []


def ignore_condition(exchange: Exchange) -> None:
    del exchange.headers["If-None-Match"]
    exchange.pass_on()


@pytest.mark.usefixtures("s3_url")
def test_a_bucket_that_does_not_exist_is_bad_input() -> None:
    store = open_store("s3://no-such-bucket-1f2e/prefix")
    for call in (store.check_writable, lambda: list(store.list("")), lambda: store.get(PATH)):
        with pytest.raises(BadInputError, match=r"NoSuchBucket.*create the bucket"):
            call()


def assert_no_secrets(error: BaseException) -> None:
    text = "".join(traceback.format_exception(error))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert os.environ[name] not in text
    assert "pa55word" not in text


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        ("AccessDenied", BadInputError, "allow s3:PutObject"),
        ("InvalidAccessKeyId", BadInputError, "check the credentials"),
        ("SignatureDoesNotMatch", BadInputError, "check the credentials"),
        ("ConditionalRequestConflict", StorageError, "refused"),
    ],
)
def test_an_error_of_the_server_says_what_to_do(
    proxy: FaultyProxy, s3_url: str, code: str, kind: type[CairnError], advice: str
) -> None:
    def refuse(exchange: Exchange) -> None:
        key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
        body = (
            f"<Error><Code>{code}</Code><Message>refused</Message>"
            f"<AWSAccessKeyId>{key}</AWSAccessKeyId><StringToSign>{secret}</StringToSign></Error>"
        )
        exchange.answer(409 if kind is StorageError else 403, {}, body.encode())

    proxy.faults["PUT"] = [refuse]
    with pytest.raises(kind, match=f"cannot write: .*{code}.*{advice}") as caught:
        open_store(s3_url).put(PATH, [b"x"])
    assert type(caught.value) is kind
    assert caught.value.file == PATH
    assert_no_secrets(caught.value)


@pytest.mark.parametrize(
    "s3_url", [moto_fails("moto does not check signatures"), "server"], indirect=True
)
def test_wrong_credentials_are_bad_input(
    proxy: FaultyProxy, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proxy.requests == []
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-pa55word")
    with pytest.raises(BadInputError, match="check the credentials") as caught:
        open_store(s3_url).check_writable()
    assert_no_secrets(caught.value)


def test_no_credentials_are_bad_input(
    proxy: FaultyProxy, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(BadInputError, match=r"locate credentials.*check the credentials"):
        open_store(s3_url).check_writable()
    assert proxy.requests == []


@pytest.mark.usefixtures("moto_url")
def test_a_server_that_cannot_be_reached_is_a_retryable_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StorageError, match=r"s3://b/p.*http://127.0.0.1:1") as caught:
        open_store("s3://b/p").put(PATH, [b"x"])
    assert caught.value.retryable
    assert_no_secrets(caught.value)


@pytest.mark.usefixtures("moto_url")
@pytest.mark.parametrize(
    "endpoint", ["nonsense:pa55word", "ftp://key:pa55word@host", "http://key:pa55word@127.0.0.1:1"]
)
def test_a_bad_endpoint_is_bad_input_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(BadInputError, match="AWS_ENDPOINT_URL") as caught:
        open_store("s3://bucket/p").check_writable()
    assert_no_secrets(caught.value)


def test_files_that_go_on_over_checkpoints_are_refused_on_s3_by_the_options_name(
    s3_url: str,
) -> None:
    def job(**merging: object) -> Job:
        options = {f"cairn.file-merging.{key.replace('_', '-')}": merging[key] for key in merging}
        return Job("j", storage=s3_url, metastore="embedded:/none", parallelism=1, options=options)

    job().spec.check_storage()
    job(across_checkpoint_boundary=True, enabled=False).spec.check_storage()
    with pytest.raises(
        BadInputError, match=r"file-merging\.across-checkpoint-boundary is true, but storage s3:"
    ):
        job(across_checkpoint_boundary=True).spec.check_storage()
    assert list(open_store(s3_url).list("")) == []


def test_files_that_are_larger_than_a_request_are_refused_on_s3_by_the_options_name(
    s3_url: str, tmp_path: Path
) -> None:
    def job(storage: str, size: str) -> Job:
        options = {"cairn.file-merging.max-file-size": size}
        return Job("j", storage=storage, metastore="embedded:/none", parallelism=1, options=options)

    job(s3_url, "4 gb").spec.check_storage()
    job(str(tmp_path), "5 gb").spec.check_storage()
    with pytest.raises(BadInputError, match=r"max-file-size is .* it is at most 4 gb"):
        job(s3_url, "5 gb").spec.check_storage()


def test_an_object_that_is_larger_than_a_request_is_not_sent(
    proxy: FaultyProxy, s3_url: str
) -> None:
    chunk = memoryview(bytes(1 << 20))
    with pytest.raises(BadInputError, match=r"in one request.*max-file-size"):
        open_store(s3_url).put(PATH, [chunk] * 5121)
    assert proxy.requests == []


def test_a_large_object_is_sent_from_its_chunks(
    proxy: FaultyProxy, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(s3_url)
    chunks = [random.Random(n).randbytes((3 << 20) + n) for n in range(4)]
    proxy.faults["PUT"] = [hang_up]  # sent again from the start
    store.put(PATH, chunks)
    assert store.get(PATH) == b"".join(chunks)
    # Not through the proxy, which sends all of it before it reads the answer.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*proxy.upstream))
    with pytest.raises(RefusedError, match="already has"):
        open_store(s3_url).put(PATH, chunks)


PEAK = """
import tracemalloc
from cairn.storage.s3 import S3Store

class Client:
    size_bytes = 0

    def put_object(self, Body, **_):
        while piece := Body.read(1 << 14):
            self.size_bytes += len(piece)

client, store = Client(), S3Store("bucket", "")
store._client = lambda: client
chunks = [bytes(16 << 20)] * 4
tracemalloc.start()
store.put("job-1/shared/a.seg", chunks)
print(client.size_bytes, tracemalloc.get_traced_memory()[1])
"""
"""Writes chunks to a client that reads as boto3 does; prints what it read, and the peak memory."""


def test_chunks_of_a_large_object_are_not_joined_in_memory() -> None:
    # In a process of its own: other threads of this one allocate, too.
    printed = subprocess.check_output([sys.executable, "-c", PEAK], text=True)
    size_bytes, peak_bytes = map(int, printed.split())
    assert size_bytes == 64 << 20
    assert peak_bytes < 8 << 20


@given(
    chunks=st.lists(st.binary(max_size=20), max_size=6),
    steps=st.lists(
        st.tuples(st.integers(-5, 130), st.sampled_from([0, 1, 2]), st.integers(-1, 50))
    ),
)
def test_chunks_are_read_as_the_file_that_they_are(
    chunks: list[bytes], steps: list[tuple[int, int, int]]
) -> None:
    reader, file = ChunkReader(chunks), io.BytesIO(b"".join(chunks))
    for offset, whence, size in steps:
        place = max(0, {0: 0, 1: file.tell(), 2: len(file.getvalue())}[whence] + offset)
        file.seek(place)
        assert reader.seek(offset, whence) == place
        assert reader.read(size) == file.read(size)
        assert reader.tell() == file.tell()
