"""Backups in a bucket of S3, or of what speaks its protocol."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qcore.backup.places import MOST_META_BYTES
from qcore.backup.settings import S3_NEEDED, BackupSettings
from qcore.errors import BackupError, ConfigError

try:
    import boto3
    from boto3.exceptions import Boto3Error
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError
except ImportError:
    raise ConfigError(S3_NEEDED) from None

CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60
TRIES = 4


class Bucket:
    """A bucket and a prefix in it.

    The key comes from the settings if they have one, else from where boto3 looks for it.
    """

    def __init__(self, settings: BackupSettings) -> None:
        assert settings.bucket is not None
        self._bucket = settings.bucket
        self._prefix = settings.prefix
        self.name = f"s3://{self._bucket}/{self._prefix}"
        with self._faults():
            self._client: Any = boto3.client(
                "s3",
                region_name=settings.region,
                endpoint_url=settings.endpoint,
                aws_access_key_id=settings.access_key,
                aws_secret_access_key=settings.secret_key,
                aws_session_token=settings.session_token,
                config=Config(
                    connect_timeout=CONNECT_TIMEOUT_S,
                    read_timeout=READ_TIMEOUT_S,
                    retries={"max_attempts": TRIES, "mode": "standard"},
                    s3={"addressing_style": "virtual" if settings.virtual_hosted else "path"},
                    # Many servers know no checksums of their own; ours are in the description.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )

    def check(self) -> None:
        pass

    @property
    def work_directory(self) -> Path:
        return Path(tempfile.gettempdir())

    def put(self, key: str, file: Path) -> None:
        with self._faults():
            self._client.upload_file(str(file), self._bucket, self._prefix + key)

    def put_bytes(self, key: str, data: bytes) -> None:
        with self._faults():
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data)

    def sizes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        with self._faults():
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
                for entry in page.get("Contents", ()):
                    found[entry["Key"].removeprefix(self._prefix)] = entry["Size"]
        return found

    def read(self, key: str) -> bytes | None:
        with self._faults():
            try:
                body = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)["Body"]
            except self._client.exceptions.NoSuchKey:
                return None
            with contextlib.closing(body):
                data: bytes = body.read(MOST_META_BYTES + 1)
                return data

    def pieces(self, key: str) -> Iterator[bytes]:
        with self._faults():
            body = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)["Body"]
            with contextlib.closing(body):
                yield from body.iter_chunks(1 << 20)

    def delete(self, key: str) -> None:
        with self._faults():
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        """Errors in one line; what boto3 says names hosts and codes, never keys."""
        try:
            yield
        except ClientError as error:
            found = error.response.get("Error", {})
            text = f"{found.get('Code', 'error')}: {found.get('Message', '')}".rstrip(": ")
            raise BackupError(f"s3://{self._bucket}: {text}") from None
        except (BotoCoreError, Boto3Error, OSError, ValueError) as error:
            raise BackupError(f"s3://{self._bucket}: {' '.join(str(error).split())}") from None
