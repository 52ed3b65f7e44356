"""What EC2 says about this instance, by version 2 of the Instance Metadata Service.

The address is the fixed link-local one. ``AWS_EC2_METADATA_SERVICE_ENDPOINT`` and its
relatives are not looked at. Source: the EC2 user guide, "Use the Instance Metadata
Service", and "Spot Instance interruption notices".
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from typing import Any, cast

from s4core.runner.exchange import Answer, exchange
from s4core.runner.exits import UnreachableError
from s4core.runner.objects import parse_object

__all__ = ["IMDS_URL", "Credentials", "Imds", "RebalanceNotice", "SpotNotice"]

IMDS_URL = "http://169.254.169.254"
TOKEN_TTL_SECONDS = 21600
REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]{1,2}")


@dataclass(frozen=True)
class Credentials:
    """Temporary credentials of the instance's role."""

    access_key: str
    secret_key: str
    token: str


@dataclass(frozen=True)
class SpotNotice:
    """The instance will be taken: `action` (terminate, stop, hibernate) at `time` (UTC text)."""

    action: str
    time: str


@dataclass(frozen=True)
class RebalanceNotice:
    """The instance is at an elevated risk of being taken, since `time` (UTC text)."""

    time: str


class Imds:
    """A client of the metadata service; safe to share between threads.

    Args:
        url: Of the service. Production code never gives it.
        total_seconds: For each request.
    """

    def __init__(self, url: str = IMDS_URL, *, total_seconds: float = 2.0) -> None:
        self._url = url
        self._total_seconds = total_seconds
        self._lock = threading.Lock()
        self._token = ""
        self._token_until = 0.0

    def get(self, path: str) -> bytes | None:
        """The bytes at `path`, or None where the service has nothing there (404).

        Raises:
            UnreachableError: The service did not answer, or refused.
        """
        answer = self._ask(path, self._fresh_token())
        if answer.status == 401:  # the token was lost, e.g. by hibernation
            answer = self._ask(path, self._fresh_token(renew=True))
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise UnreachableError(f"{self._url}{path}: expected status 200, found {answer.status}")
        return answer.body

    def identity_document(self) -> tuple[bytes, dict[str, Any]]:
        """The identity document, as served and parsed.

        Raises:
            UnreachableError: The service did not answer, or not with a JSON object.
        """
        path = "/latest/dynamic/instance-identity/document"
        raw = self._required(path)
        return raw, self._json(path, raw)

    def region(self) -> str:
        """The region this instance runs in.

        Raises:
            UnreachableError: It cannot be had, or is not the name of a region.
        """
        found = self.identity_document()[1].get("region")
        if not isinstance(found, str) or not REGION.fullmatch(found):
            raise UnreachableError(f"identity document: expected a region, found {found!r}")
        return found

    def credentials(self) -> Credentials:
        """Those of the instance's role.

        Raises:
            UnreachableError: There are none, or none yet: they come some time after boot.
        """
        root = "/latest/meta-data/iam/security-credentials/"
        role = self._required(root).decode(errors="replace").split("\n")[0].strip()
        found = self._json(root + role, self._required(root + role))
        keys = ("AccessKeyId", "SecretAccessKey", "Token")
        if found.get("Code") != "Success" or not all(isinstance(found.get(k), str) for k in keys):
            raise UnreachableError(
                f"role {role!r} has no credentials yet: Code is {found.get('Code')!r}"
            )
        return Credentials(*(cast(str, found[k]) for k in keys))

    def spot_notice(self) -> SpotNotice | None:
        """The notice of a spot interruption, if there is one."""
        path = "/latest/meta-data/spot/instance-action"
        raw = self.get(path)
        if raw is None:
            return None
        found = self._json(path, raw)
        return SpotNotice(str(found.get("action", "")), str(found.get("time", "")))

    def rebalance_notice(self) -> RebalanceNotice | None:
        """The recommendation to rebalance, if there is one."""
        path = "/latest/meta-data/events/recommendations/rebalance"
        raw = self.get(path)
        return (
            None if raw is None else RebalanceNotice(str(self._json(path, raw).get("noticeTime")))
        )

    def _required(self, path: str) -> bytes:
        found = self.get(path)
        if found is None:
            raise UnreachableError(f"{self._url}{path}: nothing there (404); not there yet?")
        return found

    def _json(self, path: str, raw: bytes) -> dict[str, Any]:
        try:
            return parse_object(raw)
        except ValueError as error:
            raise UnreachableError(f"{self._url}{path}: no JSON object: {error}") from error

    def _ask(self, path: str, token: str) -> Answer:
        return self._exchange(path, "GET", {"X-aws-ec2-metadata-token": token})

    def _exchange(self, path: str, method: str, headers: dict[str, str]) -> Answer:
        seconds = self._total_seconds
        return exchange(
            self._url + path, method, headers, connect_seconds=seconds, total_seconds=seconds
        )

    def _fresh_token(self, *, renew: bool = False) -> str:
        with self._lock:
            if renew or time.monotonic() >= self._token_until:
                self._token = self._new_token()
                self._token_until = time.monotonic() + TOKEN_TTL_SECONDS - 60
            return self._token

    def _new_token(self) -> str:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_SECONDS)}
        answer = self._exchange("/latest/api/token", "PUT", headers)
        token = answer.body.decode("latin-1")
        if answer.status != 200 or not re.fullmatch(r"[!-~]{1,4096}", token):
            raise UnreachableError(f"{self._url}: no IMDSv2 token: status {answer.status}")
        return token
