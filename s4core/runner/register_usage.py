"""Mode ``register-usage``: RegisterUsage, once per boot, with a signed answer.

The answer is a JWT that AWS signs with the product's private key; it is verified against
the public key in the image, with PS256 and nothing else, and its product code, nonce and
key version are compared. So no one who stands in for the service can grant anything.

The nonce holds the kernel's boot id, so the signature binds the answer to this boot. It is
kept in the runtime directory and verified again at each restart; what does not verify is as
if it were not there.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from s4core.runner.exits import ConfigurationError, DeniedError
from s4core.runner.grant import Grant
from s4core.runner.image import ImageSettings
from s4core.runner.metering_api import MeteringApi
from s4core.runner.objects import parse_object

__all__ = ["KeptAnswer", "RegisterUsage", "verify_answer"]

logger = logging.getLogger(__name__)

MODE = "register-usage"
# Clocks of the instance and of AWS may differ by this much, where the JWT has times at all.
LEEWAY_SECONDS = 300
MAX_KEPT_BYTES = 16 * 1024


class RegisterUsage:
    """The mode.

    Args:
        image: Product code, key version and public key.
        api: Carries the call.
        boot_id: Of the running kernel.
        kept: Where the verified answer stays for the rest of the boot; None for nowhere.
    """

    def __init__(
        self, image: ImageSettings, api: MeteringApi, boot_id: str, kept: KeptAnswer | None
    ) -> None:
        self._image = image
        self._api = api
        self._boot_id = boot_id
        self._kept = kept

    def ask(self) -> Grant:
        """See `Entitlement.ask`."""
        return self._recalled() or self._registered()

    def _recalled(self) -> Grant | None:
        found = self._kept.read() if self._kept else None
        if found is None or not found[0].startswith(f"{self._boot_id}/"):
            return None
        try:
            verify_answer(found[1], self._image, found[0])
        except DeniedError as error:
            logger.warning("the kept answer does not verify, asking anew: %s", error)
            return None
        return Grant(MODE, "signed answer of this boot, verified again")

    def _registered(self) -> Grant:
        nonce = f"{self._boot_id}/{uuid.uuid4()}"
        answer = self._api.call(
            "RegisterUsage",
            {
                "ProductCode": self._image.product_code,
                "PublicKeyVersion": self._image.public_key_version,
                "Nonce": nonce,
            },
        )
        signature = answer.get("Signature")
        if not isinstance(signature, str):
            raise DeniedError("RegisterUsage: the answer holds no Signature")
        verify_answer(signature, self._image, nonce)
        if self._kept:
            self._kept.write(nonce, signature)
        return Grant(MODE, "signed answer of RegisterUsage", _warnings(self._image, answer))


def verify_answer(signature: str, image: ImageSettings, nonce: str) -> None:
    """Check a signed answer against the image's key and what was asked.

    Raises:
        DeniedError: It is not signed by that key with PS256, or answers something else.
        ConfigurationError: PyJWT is missing, or the key is none.
    """
    claims = _signed_claims(signature, image.public_key)
    expected = {
        "productCode": image.product_code,
        "nonce": nonce,
        "publicKeyVersion": str(image.public_key_version),
    }
    for name, value in expected.items():
        found = claims.get(name)
        # type(), not isinstance: True would pass for the key version 1.
        if type(found) not in (str, int) or str(found) != value:
            raise DeniedError(
                f"RegisterUsage: claim {name}: expected {value!r}, found {found!r}: the answer "
                "was made for another request"
            )


def _signed_claims(signature: str, public_key: str) -> dict[str, Any]:
    try:
        import jwt
    except ImportError as error:
        raise ConfigurationError(
            "verifying the entitlement needs PyJWT and cryptography: "
            "pip install 's4weights[runner]'"
        ) from error
    try:
        # The list is the defence against alg=none and against HS256 keyed with the PEM.
        return jwt.decode(
            signature,
            public_key,
            algorithms=["PS256"],
            options={"verify_aud": False},
            leeway=LEEWAY_SECONDS,
        )
    except jwt.InvalidKeyError as error:
        raise ConfigurationError(f"publicKey of the image is no RSA key: {error}") from error
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise DeniedError(
            f"RegisterUsage: the answer is not signed by the product's key: {error}"
        ) from error


def _warnings(image: ImageSettings, answer: Mapping[str, Any]) -> tuple[str, ...]:
    rotated = answer.get("PublicKeyRotationTimestamp")
    if rotated is None:
        return ()
    return (
        f"public key version {image.public_key_version} expired at {rotated}: "
        "upgrade to a newer image",
    )


class KeptAnswer:
    """A file with the last verified answer.

    Its bytes are trusted for nothing: what is read is verified like a fresh answer.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> tuple[str, str] | None:
        """The nonce and the signature, or None if there is nothing of that form."""
        try:
            with self._path.open("rb") as stream:
                found = parse_object(stream.read(MAX_KEPT_BYTES))
        except (OSError, ValueError):
            return None
        nonce, signature = found.get("nonce"), found.get("signature")
        return (nonce, signature) if isinstance(nonce, str) and isinstance(signature, str) else None

    def write(self, nonce: str, signature: str) -> None:
        """Replace the file, whole or not at all; a failure costs one more call, so it is logged."""
        partial = self._path.with_suffix(f".{os.getpid()}")
        try:
            partial.write_text(json.dumps({"nonce": nonce, "signature": signature}))
            partial.replace(self._path)
        except OSError as error:
            logger.warning("%s: the answer cannot be kept: %s", self._path, error)
