# SPDX-License-Identifier: Apache-2.0
"""S3: GetObject with a range; without KMS, the ETag of a one-part object is its MD5."""

import contextlib
from typing import Any

import boto3.session
import botocore.config
import botocore.exceptions
from glance_store._drivers import s3 as driver

from acstor_glance.gateway import byte_range
from acstor_glance.gateway.readers import base

_PLAIN = ("", "AES256")  # encryption at rest with which the ETag is the object's MD5


class S3Reader(base.Reader):
    """Reads objects with one access key, by ``reads`` connections."""

    def __init__(self, name: str, options: Any, reads: int, timeout_s: float) -> None:
        super().__init__(name)
        self._client = _connect(options, reads, timeout_s)

    def read(self, location: Any, requested: byte_range.ByteRange) -> base.ObjectRange:
        """Read a range; see :meth:`base.Reader.read`."""
        wanted = f"bytes={requested.offset}-{requested.offset + requested.length - 1}"
        try:
            answer = self._client.get_object(Bucket=location.bucket, Key=location.key, Range=wanted)
            with contextlib.closing(answer["Body"]) as body:
                data = body.read(requested.length + 1)
        except botocore.exceptions.ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            code = str(error.response.get("Error", {}).get("Code", ""))[:60]
            raise self.status_error(status, f"it answers {status} {code}") from error
        except (botocore.exceptions.BotoCoreError, OSError) as error:
            raise base.StoreUnreachable(self.name, type(error).__name__) from error
        md5 = answer.get("ETag", "")
        if answer.get("ServerSideEncryption", "") not in _PLAIN or "SSECustomerAlgorithm" in answer:
            md5 = ""
        return self.parse_response(requested, answer.get("ContentRange", ""), data, md5)


def _connect(options: Any, reads: int, timeout_s: float) -> Any:
    host = options.s3_store_host
    region = options.s3_store_region_name or None
    amazon = driver.get_s3_location(host)
    endpoint = None
    if region or not amazon:
        endpoint = host if host.startswith(("http://", "https://")) else f"http://{host}"
    session = boto3.session.Session(
        aws_access_key_id=options.s3_store_access_key,
        aws_secret_access_key=options.s3_store_secret_key,
    )
    return session.client(
        "s3",
        endpoint_url=endpoint,
        region_name=region or amazon or None,
        use_ssl=host.startswith("https://"),
        verify=options.s3_store_cacert or None,
        config=botocore.config.Config(
            s3={"addressing_style": options.s3_store_bucket_url_format},
            connect_timeout=timeout_s,
            read_timeout=timeout_s,
            max_pool_connections=reads,
            retries={"total_max_attempts": 1},
            response_checksum_validation="when_required",
        ),
    )
