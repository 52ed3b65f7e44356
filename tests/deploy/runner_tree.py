"""A Debian tree with the runner installed as the image has it, and AWS stood in for.

Production code throughout: the fakes listen on the real addresses (IMDS on 169.254.169.254,
the metering service's own name through /etc/hosts), their certificate comes from an
authority that the tree's own bundle trusts, and the product's key pair is that of the test.
Two things differ from an image: the self-test is a command of the test (there is no GPU
here), and the deadline of the entitlement check is 3 seconds instead of 90.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from deploy.rootfs import cache_directory
from runner.fake_aws import KEY_VERSION, PRODUCT, REGION

ROOT = Path(__file__).parents[2]
METERING = f"metering.marketplace.{REGION}.amazonaws.com"
REQUIREMENTS = ("PyJWT==2.15.1", "cryptography==50.0.2")
DEADLINE = "DEADLINE_SECONDS = 90.0"
SELF_TEST = ["/bin/sh", "-c", 'sleep 0.2; echo \'{"gpu": "none, a test"}\'']

FAKE_UNIT = """
[Unit]
DefaultDependencies=no
After=sysinit.target
Before=s4-runner.service
[Service]
ExecStartPre=ip addr replace 169.254.169.254/32 dev lo
ExecStart=/opt/s4weights/bin/python /fake/fake_aws.py /fake
[Install]
WantedBy=multi-user.target
"""


def install(tree: Path) -> None:
    """Put the runner, its settings and the fakes into `tree`, both enabled at boot."""
    _install_python(tree)
    deploy = ROOT / "deploy"
    _copy(deploy / "s4-runner.service", tree / "etc/systemd/system/s4-runner.service")
    _copy(deploy / "sysusers.d/s4-runner.conf", tree / "usr/lib/sysusers.d/s4-runner.conf")
    _copy(deploy / "tmpfiles.d/s4-runner.conf", tree / "usr/lib/tmpfiles.d/s4-runner.conf")
    (tree / "etc/systemd/system/fake-aws.service").write_text(FAKE_UNIT)
    wants = tree / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    for unit in ("s4-runner", "fake-aws"):
        (wants / f"{unit}.service").symlink_to(f"/etc/systemd/system/{unit}.service")
    _install_fakes(tree)
    (tree / "etc/s4").mkdir()
    subprocess.run(["systemd-sysusers", f"--root={tree}"], check=True, capture_output=True)


def write_image_settings(tree: Path, **changes: object) -> None:
    """The file of the image, with the product's public key of the test."""
    file = tree / "usr/share/s4weights/entitlement.json"
    file.parent.mkdir(exist_ok=True)
    settings = {
        "version": 1,
        "mode": "register-usage",
        "productCode": PRODUCT,
        "publicKeyVersion": KEY_VERSION,
        "publicKey": (tree / "fake/public.pem").read_text(),
        "selfTestCommand": SELF_TEST,
        **changes,
    }
    file.write_text(json.dumps(settings))
    file.chmod(0o644)


def write_settings(tree: Path, **settings: str) -> None:
    """The customer's settings; a store in the state directory unless told otherwise."""
    every = {"S4_STORE": "file:///var/lib/s4-runner/store", **settings}
    lines = [f"{name}='{value}'" for name, value in every.items() if value]
    (tree / "etc/s4/runner.env").write_text("\n".join(lines) + "\n")


def _install_python(tree: Path) -> None:
    """What ``python3 -m venv`` and pip make, in so far as the runner needs it."""
    root = tree / "opt/s4weights"
    (root / "bin").mkdir(parents=True)
    (root / "bin/python").symlink_to("/usr/bin/python3")
    (root / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = root / "lib" / version / "site-packages"
    shutil.copytree(_vendored(), site)
    skipped = shutil.ignore_patterns("__pycache__", "*.so", "csrc")
    shutil.copytree(ROOT / "s4core", site / "s4core", ignore=skipped)
    entitlement = site / "s4core/runner/entitlement.py"
    text = entitlement.read_text()
    assert text.count(DEADLINE) == 1
    entitlement.write_text(text.replace(DEADLINE, "DEADLINE_SECONDS = 3.0"))


def _vendored() -> Path:
    """The runner's dependencies, installed once into the cache."""
    name = hashlib.sha256(repr((REQUIREMENTS, sys.version_info[:2])).encode()).hexdigest()[:12]
    site = cache_directory() / f"site-{name}"
    if not site.exists():
        partial = site.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--only-binary=:all:"]
        subprocess.run([*pip, "--target", str(partial), *REQUIREMENTS], check=True)
        partial.rename(site)
    return site


def _install_fakes(tree: Path) -> None:
    fake = tree / "fake"
    fake.mkdir()
    _copy(ROOT / "tests/runner/fake_aws.py", fake / "fake_aws.py")
    product, other, authority, server = (rsa.generate_private_key(65537, 2048) for _ in range(4))
    (fake / "private.pem").write_bytes(_private(product))
    (fake / "other.pem").write_bytes(_private(other))
    (fake / "public.pem").write_bytes(
        product.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    trusted = _certificate("authority of the tests", authority, authority, is_authority=True)
    own = _certificate(METERING, server, authority, is_authority=False)
    (fake / "tls.pem").write_bytes(_private(server) + own)
    with (tree / "etc/ssl/certs/ca-certificates.crt").open("ab") as bundle:
        bundle.write(trusted)
    (tree / "etc/hosts").write_text(f"127.0.0.1 localhost {METERING}\n")
    (fake / "scenario").write_text("signed")


def _certificate(
    name: str, key: rsa.RSAPrivateKey, signer: rsa.RSAPrivateKey, *, is_authority: bool
) -> bytes:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named("authority of the tests"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(METERING)]), critical=False)
        .sign(signer, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


def _private(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    target.chmod(0o644)
