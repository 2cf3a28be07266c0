"""Copying ranges of objects on S3 into a new one, by the server where it can."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from cairn.storage.ranges import ByteRange, Part

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

_log = logging.getLogger(__name__)

_PARTS_AT_ONCE = 4


class Upload:
    """One upload in parts: its object appears when it is completed, and not before."""

    def __init__(self, client: S3Client, bucket: str, key: str) -> None:
        self._client = client
        self._bucket = bucket
        self._key = key
        begun = client.create_multipart_upload(Bucket=bucket, Key=key)
        self._upload_id = begun["UploadId"]

    def send(
        self, parts: Sequence[Part], key_of: Callable[[str], str], read: Callable[[Part], bytes]
    ) -> list[CompletedPartTypeDef]:
        """Makes the parts, several at once; `read` gives the bytes that the server cannot copy."""

        def send(numbered: tuple[int, Part]) -> CompletedPartTypeDef:
            number, part = numbered
            if part.is_copied:
                tag = self._copy(number, part.ranges[0], key_of)
            else:
                tag = self._client.upload_part(
                    Bucket=self._bucket,
                    Key=self._key,
                    UploadId=self._upload_id,
                    PartNumber=number,
                    Body=read(part),
                )["ETag"]
            return {"PartNumber": number, "ETag": tag}

        with ThreadPoolExecutor(_PARTS_AT_ONCE) as threads:
            return list(threads.map(send, enumerate(parts, start=1)))

    def _copy(self, number: int, source: ByteRange, key_of: Callable[[str], str]) -> str:
        answer = self._client.upload_part_copy(
            Bucket=self._bucket,
            Key=self._key,
            UploadId=self._upload_id,
            PartNumber=number,
            CopySource={"Bucket": self._bucket, "Key": key_of(source.path)},
            CopySourceRange=f"bytes={source.offset}-{source.end - 1}",
        )
        return answer["CopyPartResult"]["ETag"]

    def complete(self, client: S3Client, parts: Sequence[CompletedPartTypeDef]) -> None:
        """Makes the object, if nothing has its name."""
        client.complete_multipart_upload(
            Bucket=self._bucket,
            Key=self._key,
            UploadId=self._upload_id,
            MultipartUpload={"Parts": list(parts)},
            IfNoneMatch="*",
        )

    def abort(self) -> None:
        """Frees what the parts take; where that fails, it is left and a warning says so."""
        try:
            self._client.abort_multipart_upload(
                Bucket=self._bucket, Key=self._key, UploadId=self._upload_id
            )
        except (ClientError, BotoCoreError) as error:
            facts = {"file": self._key, "upload_id": self._upload_id, "error": str(error)}
            _log.warning("an unfinished upload was left in the bucket", extra=facts)
