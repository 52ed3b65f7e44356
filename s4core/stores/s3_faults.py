"""What an answer of S3 means: try again, or which error to raise.

Pure, and without the S3 client: it works on the code and the HTTP status of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from s4core.errors import (
    AccessDeniedError,
    ChecksumError,
    S4Error,
    StoreError,
    StoreUnavailableError,
    TruncatedError,
)
from s4core.stores.base import key_exists, key_not_found

__all__ = [
    "DAMAGED_ANSWER",
    "NO_ANSWER",
    "NO_CREDENTIALS",
    "NO_TRUST",
    "Fault",
    "Outlook",
]

# Codes of our own, for what the client found before or instead of an answer.
NO_ANSWER = "NoAnswer"
NO_CREDENTIALS = "NoCredentials"
NO_TRUST = "NoTrust"
DAMAGED_ANSWER = "DamagedAnswer"


class Outlook(Enum):
    """Whether asking again can help."""

    HOPELESS = "the same answer will come again"
    TRANSIENT = "it may pass"
    DAMAGED = "bytes changed on the way: it passes soon, or this machine is broken"


_TRANSIENT_CODES = frozenset(
    {
        NO_ANSWER,
        "ConditionalRequestConflict",
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "IncompleteBody",
    }
)
_DAMAGED_CODES = frozenset(
    {DAMAGED_ANSWER, "BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
)
_TRANSIENT_STATUS = frozenset({408, 425, 429})

_CREDENTIALS_ADVICE = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run 'aws configure', "
    "or give the machine a role"
)
_DENIED_DEFAULT = (
    "the credentials found may not do this; check the bucket policy and the role. Without "
    "s3:ListBucket, S3 answers so for a missing key too"
)
_DENIED_ADVICE = {
    "AccessDenied": _DENIED_DEFAULT,
    NO_CREDENTIALS: _CREDENTIALS_ADVICE,
    "InvalidAccessKeyId": f"the access key is not known there; {_CREDENTIALS_ADVICE}",
    "SignatureDoesNotMatch": f"the secret key is wrong; {_CREDENTIALS_ADVICE}",
    "ExpiredToken": "the session has expired; get fresh credentials and try again",
    "InvalidToken": "the session token is not valid; get fresh credentials and try again",
    "RequestTimeTooSkewed": "this machine's clock is wrong; set it and try again",
}
_HOPELESS_ADVICE = {
    "NoSuchBucket": "the bucket does not exist; check its name, or create it",
    "PermanentRedirect": "the bucket is in another region; set region or AWS_REGION",
    "AuthorizationHeaderMalformed": "the bucket is in another region; set region or AWS_REGION",
    "InvalidObjectState": "the object is archived; restore it first",
    "EntityTooLarge": "the object is too large for one request; pass size_hint",
    "NotImplemented": "this server does not know that; try checksums='when_required'",
    NO_TRUST: "the server's certificate is not trusted; set ca_bundle or AWS_CA_BUNDLE",
}


@dataclass(frozen=True)
class Fault:
    """One failed request.

    Attributes:
        code: S3's error code, or one of the constants above.
        status: HTTP status; 0 if there was no answer.
        reason: For a person; holds no secrets.
    """

    code: str
    status: int
    reason: str

    @property
    def outlook(self) -> Outlook:
        """Whether asking again can help."""
        if self.code in _DAMAGED_CODES:
            return Outlook.DAMAGED
        if self.code in _TRANSIENT_CODES or self.status in _TRANSIENT_STATUS:
            return Outlook.TRANSIENT
        if self.status >= 500 and self.status != 501:
            return Outlook.TRANSIENT
        return Outlook.HOPELESS

    def error(self, url: str) -> S4Error:
        """The error to raise when the request on `url` is given up."""
        if self.code == DAMAGED_ANSWER:
            return ChecksumError(f"{url}: {self.reason}; the stored bytes or the network changed")
        if self.outlook is Outlook.DAMAGED:
            return StoreUnavailableError(
                f"{url}: S3 received other bytes than were sent, each time "
                f"({self.code}: {self.reason}); check the network and the memory of this machine"
            )
        if self.outlook is Outlook.TRANSIENT:
            return StoreUnavailableError(
                f"{url}: no success before the deadline; last ({self.code}: {self.reason}); try "
                "again later, or raise deadline_seconds"
            )
        return self._hopeless(url)

    def _hopeless(self, url: str) -> S4Error:
        if self.code in _HOPELESS_ADVICE:
            return StoreError(f"{url}: {_HOPELESS_ADVICE[self.code]} ({self.reason})")
        if self.code in _DENIED_ADVICE or self.status in (401, 403):
            advice = _DENIED_ADVICE.get(self.code, _DENIED_DEFAULT)
            return AccessDeniedError(f"{url}: access denied ({self.code}: {self.reason}); {advice}")
        if self.status == 412:
            return key_exists(url)
        if self.status == 416:
            return TruncatedError(f"{url}: the range starts past the end")
        if self.status == 404:
            return key_not_found(url)
        return StoreError(
            f"{url}: the request failed ({self.code}, HTTP {self.status}: {self.reason})"
        )
