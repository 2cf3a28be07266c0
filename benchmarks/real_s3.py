"""A real S3 server on this machine, each of whose requests waits."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
from botocore.config import Config

from benchmarks.slow_proxy import slow_proxy
from cairn.errors import BadInputError

_BUCKET = "bench"
_SCRIPT = Path(__file__).resolve().parents[1] / "tests" / "tools" / "s3_server.sh"
_REMOVED = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3")


@contextmanager
def real_s3(directory: Path, delay_ms: float) -> Iterator[str]:
    """Yields the URL of a bucket, and sets the environment so that boto3 finds its server.

    The server keeps it below `directory`.

    Raises:
        BadInputError: there is no server here; the message says why.
    """
    started = subprocess.run(  # noqa: S603 - the program is ours
        [_SCRIPT, directory], capture_output=True, text=True, check=False
    )
    if started.returncode != 0:
        raise BadInputError(f"{started.stderr.strip()}; see tests/tools/s3_server.sh")
    settings = dict(re.findall(r"export (\w+)=(\S+)", started.stdout))
    before = dict(os.environ)
    try:
        for name in _REMOVED:
            os.environ.pop(name, None)
        os.environ.update(settings)
        with slow_proxy(settings["AWS_ENDPOINT_URL"], delay_ms) as endpoint:
            os.environ["AWS_ENDPOINT_URL"] = endpoint
            client = boto3.Session().client("s3", config=Config(s3={"addressing_style": "path"}))
            client.create_bucket(Bucket=_BUCKET)
            client.close()
            yield f"s3://{_BUCKET}"
    finally:
        os.kill(int(settings["CAIRN_TEST_S3_PID"]), signal.SIGTERM)
        os.environ.clear()
        os.environ.update(before)
