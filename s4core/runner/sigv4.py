"""AWS Signature Version 4 for a JSON POST to ``/``, the one request this package signs.

Source: AWS General Reference, "Create a signed AWS API request". It is written here, and
not left to an SDK, because an SDK takes endpoints, proxies, certificate bundles and even
its service models from the environment, which must not reach the entitlement check.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime, timezone

from s4core.runner.imds import Credentials

__all__ = ["signed_headers"]

ALGORITHM = "AWS4-HMAC-SHA256"


def signed_headers(
    credentials: Credentials,
    region: str,
    service: str,
    headers: Mapping[str, str],
    body: bytes,
    seconds: float,
) -> dict[str, str]:
    """`headers` and those that sign them, for a POST of `body` to ``/``.

    Args:
        credentials: Temporary credentials.
        region: Of the endpoint.
        service: The signing name of the service.
        headers: Must hold ``host``, in lower case as all others.
        body: Exactly what is sent.
        seconds: Now, since the epoch.
    """
    stamp = datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    every = {**headers, "x-amz-date": stamp, "x-amz-security-token": credentials.token}
    names = ";".join(sorted(every))
    lines = "".join(f"{name}:{every[name].strip()}\n" for name in sorted(every))
    request = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = _signing_key(credentials.secret_key, scope)
    signature = _hmac(key, f"{ALGORITHM}\n{stamp}\n{scope}\n{digest}").hex()
    every["authorization"] = (
        f"{ALGORITHM} Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return every


def _signing_key(secret: str, scope: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = _hmac(key, part)
    return key


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
