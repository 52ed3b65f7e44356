"""The two calls of the AWS Marketplace Metering Service that grant a start.

JSON 1.1 over HTTPS, signed with the role of the instance (`sigv4`). Which answers are
worth another try and which are final is decided here, in one table, for both calls.
Source: API reference of the AWS Marketplace Metering Service.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from s4core.runner.exchange import CA_BUNDLE, Answer, exchange
from s4core.runner.exits import DeniedError, UnreachableError
from s4core.runner.imds import Imds
from s4core.runner.objects import parse_object
from s4core.runner.sigv4 import signed_headers

__all__ = ["AwsMeteringApi", "MeteringApi"]

SERVICE = "aws-marketplace"
TARGET = "AWSMPMeteringService"

# Everything else that is no success is final, known or not: the gate fails closed.
RETRIED_ERRORS = frozenset({"ThrottlingException", "InternalServiceErrorException"})

ADVICE = {
    "CustomerNotEntitledException": "subscribe to the product in AWS Marketplace",
    "CustomerNotSubscribedException": "subscribe to the product in AWS Marketplace",
    "PlatformNotSupportedException": (
        "AWS allows RegisterUsage on ECS, EKS and Fargate only; on a plain EC2 instance the "
        "image must be built with mode meter-usage or instance-identity (docs/entitlement.md)"
    ),
    "AccessDeniedException": (
        "the instance's role lacks aws-marketplace:RegisterUsage or aws-marketplace:MeterUsage"
    ),
}


class MeteringApi(Protocol):
    """Something that carries one operation to the service and gives its answer's object."""

    def call(self, operation: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The answer's JSON object.

        Raises:
            DeniedError: The service said no, or something that is not an answer; `kind`
                is the name of its error.
            UnreachableError: It did not answer, or asked to be asked again.
        """
        ...


class AwsMeteringApi:
    """The service itself.

    Args:
        imds: Gives the region and the role's credentials, at every call.
        endpoint: Of a stand-in. Production code never gives it.
        total_seconds: For each request.
        clock: Seconds since the epoch.
        ca_bundle: Trusted certificate authorities.
    """

    def __init__(
        self,
        imds: Imds,
        *,
        endpoint: str | None = None,
        total_seconds: float = 10.0,
        clock: Callable[[], float] = time.time,
        ca_bundle: str = CA_BUNDLE,
    ) -> None:
        self._imds = imds
        self._endpoint = endpoint
        self._total_seconds = total_seconds
        self._clock = clock
        self._ca_bundle = ca_bundle

    def call(self, operation: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """See `MeteringApi.call`."""
        region = self._imds.region()
        url = self._endpoint or _endpoint(region)
        body = json.dumps(dict(fields)).encode()
        headers = {
            "host": url.split("//", 1)[1],
            "content-type": "application/x-amz-json-1.1",
            "x-amz-target": f"{TARGET}.{operation}",
        }
        signed = signed_headers(
            self._imds.credentials(), region, SERVICE, headers, body, self._clock()
        )
        answer = exchange(
            url, "POST", signed, body, total_seconds=self._total_seconds, ca_bundle=self._ca_bundle
        )
        return _object_or_error(operation, answer)


def _endpoint(region: str) -> str:
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://metering.marketplace.{region}.{suffix}"


def _object_or_error(operation: str, answer: Answer) -> dict[str, Any]:
    if answer.status == 429 or answer.status >= 500:
        raise UnreachableError(f"{operation}: status {answer.status}: the service is busy or down")
    try:
        found = parse_object(answer.body)
    except ValueError as error:
        raise DeniedError(
            f"{operation}: status {answer.status} with something that is no answer: {error}"
        ) from error
    if answer.status == 200:
        return found
    raise _error(operation, answer, found)


def _error(operation: str, answer: Answer, found: Mapping[str, Any]) -> Exception:
    # "com.amazonaws...#Name" in the body, "Name:http://..." in the header.
    kind = str(found.get("__type") or answer.headers.get("x-amzn-errortype", "no error type"))
    name = kind.split("#")[-1].split(":")[0]
    text = str(found.get("message") or found.get("Message") or "no message")[:300]
    said = f"{operation}: {name}: {text}"
    if name in RETRIED_ERRORS:
        return UnreachableError(said)
    advice = ADVICE.get(name)
    return DeniedError(f"{said}; {advice}" if advice else said, kind=name)
