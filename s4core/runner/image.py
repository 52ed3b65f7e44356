"""The product's own settings: written when the image was built, never the customer's.

One JSON file at a path compiled in, owned by root and writable by no one else::

    {"version": 1,
     "mode": "register-usage" | "meter-usage" | "instance-identity",
     "productCode": "...",
     "publicKeyVersion": 1, "publicKey": "-----BEGIN PUBLIC KEY-----...",     register-usage
     "usageDimension": "...", "usageQuantity": 1,                             meter-usage
     "awsCertificates": {"us-east-1": "-----BEGIN CERTIFICATE-----..."},      instance-identity
     "selfTestCommand": ["..."]}                              optional; default `DEFAULT_SELF_TEST`

`mode` may be left out and is then ``register-usage``. An unknown or missing key is an error.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s4core.runner.exits import ConfigurationError
from s4core.runner.objects import parse_object

__all__ = ["IMAGE_SETTINGS", "MODES", "ImageSettings", "load_image_settings"]

IMAGE_SETTINGS = Path("/usr/share/s4weights/entitlement.json")
MAX_FILE_BYTES = 256 * 1024

# The keys that each mode needs, besides productCode.
MODES: Mapping[str, tuple[str, ...]] = {
    "register-usage": ("publicKeyVersion", "publicKey"),
    "meter-usage": ("usageDimension", "usageQuantity"),
    "instance-identity": ("awsCertificates",),
}
OPTIONAL = ("mode", "selfTestCommand")

# The pattern of ProductCode in the API reference.
PRODUCT_CODE = re.compile(r"[-a-zA-Z0-9/=:_.@]{1,255}")
DIMENSION = re.compile(r"\S{1,255}")


@dataclass(frozen=True)
class ImageSettings:
    """What the image was built with; the fields of other modes are empty.

    Attributes:
        mode: A key of `MODES`.
        product_code: Of the AWS Marketplace product.
        public_key_version: Of the key pair that signs answers of RegisterUsage.
        public_key: Its public half, PEM.
        usage_dimension: What MeterUsage records.
        usage_quantity: Units of it in an hour.
        aws_certificates: Region to the PEM certificate that signs identity documents there.
        self_test_command: What runs the GPU self-test; None means the built-in one.
    """

    mode: str
    product_code: str
    public_key_version: int = 0
    public_key: str = ""
    usage_dimension: str = ""
    usage_quantity: int = 0
    aws_certificates: Mapping[str, str] | None = None
    self_test_command: tuple[str, ...] | None = None


def load_image_settings(path: Path = IMAGE_SETTINGS, *, owner: int = 0) -> ImageSettings:
    """The settings in `path`, checked whole.

    Args:
        path: Production code never gives it.
        owner: The user id that must own the file.

    Raises:
        ConfigurationError: The file is missing, not protected, or not as described above.
    """
    raw = _read_protected(path, owner)
    try:
        return _checked(parse_object(raw))
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}; the image must be built again") from error


def _read_protected(path: Path, owner: int) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != owner or found.st_mode & 0o022:
            raise ConfigurationError(
                f"{path}: expected a regular file owned by user {owner} and writable by no one "
                f"else, found mode {stat.filemode(found.st_mode)}, owner {found.st_uid}"
            )
        with open(handle, "rb", closefd=False) as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(handle)
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigurationError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    return raw


def _checked(found: Mapping[str, Any]) -> ImageSettings:
    if found.get("version") != 1:
        raise ValueError(f"expected version 1, found {found.get('version')!r}")
    mode = found.get("mode", "register-usage")
    if not isinstance(mode, str) or mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}, found {mode!r}")
    needed = ("version", "productCode", *MODES[mode])
    missing = [key for key in needed if key not in found]
    unknown = sorted(set(found) - set(needed) - set(OPTIONAL))
    if missing or unknown:
        raise ValueError(f"mode {mode}: missing keys {missing}, unknown keys {unknown}")
    return ImageSettings(
        mode=mode,
        product_code=_text(found, "productCode", PRODUCT_CODE),
        public_key_version=_positive(found, "publicKeyVersion"),
        public_key=_public_key(found),
        usage_dimension=_text(found, "usageDimension", DIMENSION),
        usage_quantity=_positive(found, "usageQuantity"),
        aws_certificates=_certificates(found),
        self_test_command=_command(found),
    )


def _text(found: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    if key not in found:
        return ""
    value = found[key]
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{key}: expected {pattern.pattern}, found {value!r}")
    return value


def _positive(found: Mapping[str, Any], key: str) -> int:
    if key not in found:
        return 0
    value = found[key]
    if type(value) is not int or not 1 <= value < 2**31:
        raise ValueError(f"{key}: expected an integer of at least 1, found {value!r}")
    return value


def _public_key(found: Mapping[str, Any]) -> str:
    value = found.get("publicKey", "")
    if "publicKey" in found and not (isinstance(value, str) and "BEGIN PUBLIC KEY" in value):
        raise ValueError("publicKey: expected a PEM public key")
    return str(value)


def _certificates(found: Mapping[str, Any]) -> Mapping[str, str] | None:
    value = found.get("awsCertificates")
    if value is None:
        return None
    if not isinstance(value, dict) or not value:
        raise ValueError("awsCertificates: expected an object of region to PEM certificate")
    if not all(isinstance(v, str) and "BEGIN CERTIFICATE" in v for v in value.values()):
        raise ValueError("awsCertificates: every value must be a PEM certificate")
    return value


def _command(found: Mapping[str, Any]) -> tuple[str, ...] | None:
    value = found.get("selfTestCommand")
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise ValueError("selfTestCommand: expected a list of strings, not empty")
    return tuple(value)
