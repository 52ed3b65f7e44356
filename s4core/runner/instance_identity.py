"""Mode ``instance-identity``: the product codes in the signed instance identity document.

AWS puts the codes of the AWS Marketplace products an instance was launched from into its
identity document and signs it. Nothing leaves the machine. The document has no nonce: what
ties it to this machine is the instance id that the hypervisor shows in the SMBIOS tables of
Nitro instances, which is compared where it is there.
"""

from __future__ import annotations

from pathlib import Path

from s4core.runner.exits import ConfigurationError, DeniedError, UnreachableError
from s4core.runner.grant import Grant
from s4core.runner.image import ImageSettings
from s4core.runner.imds import Imds
from s4core.runner.signed_document import verify_document

__all__ = ["InstanceIdentity"]

MODE = "instance-identity"
SIGNATURE = "/latest/dynamic/instance-identity/rsa2048"
ASSET_TAG = Path("/sys/devices/virtual/dmi/id/board_asset_tag")


class InstanceIdentity:
    """The mode.

    Args:
        image: Product code and the certificate of each region.
        imds: Gives the document and its signature.
        asset_tag: The file with the hypervisor's instance id; production code never gives it.
    """

    def __init__(self, image: ImageSettings, imds: Imds, asset_tag: Path = ASSET_TAG) -> None:
        self._image = image
        self._imds = imds
        self._asset_tag = asset_tag

    def ask(self) -> Grant:
        """See `Entitlement.ask`."""
        raw, document = self._imds.identity_document()
        region = document.get("region")
        certificate = (self._image.aws_certificates or {}).get(str(region))
        if certificate is None:
            raise ConfigurationError(
                f"the image holds no AWS certificate for region {region!r}: use a region that the "
                "product is offered in, or a newer image"
            )
        signature = self._imds.get(SIGNATURE)
        if signature is None:
            raise UnreachableError(f"{SIGNATURE}: nothing there (404); not there yet?")
        verify_document(raw, signature, certificate)
        self._check_instance(document.get("instanceId"))
        self._check_codes(document.get("marketplaceProductCodes"))
        return Grant(MODE, f"signed product code of {document.get('instanceId')}")

    def _check_instance(self, instance: object) -> None:
        try:
            tag = self._asset_tag.read_text(errors="replace").strip()
        except OSError:
            return  # no SMBIOS here: Xen instances
        if tag.startswith("i-") and tag != instance:
            raise DeniedError(f"identity document: of instance {instance!r}, but this one is {tag}")

    def _check_codes(self, codes: object) -> None:
        if not isinstance(codes, list) or self._image.product_code not in codes:
            raise DeniedError(
                f"identity document: expected product code {self._image.product_code!r}, found "
                f"{codes!r}: launch the product from AWS Marketplace"
            )
