"""Tell the CloudFormation stack whether the runner became ready, and why it did not.

UserData runs this once, on first boot, as root. It waits until ``/readyz`` answers 200 or the
unit has failed for good, and signals the Auto Scaling group's resource. The reason of a
failure is put into the signal's UniqueId, the only text of it that stack events show:
``i-0123456789abcdef0.not-entitled``.

A stack that no longer waits (the group replaced its instance months later) is not an error.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

READY = "http://127.0.0.1:8080/readyz"
UNIT = "s4-runner.service"
INSTANCE_ID = Path("/var/lib/cloud/data/instance-id")
# The exit codes of s4-runner; see s4core/runner/exits.py.
REASONS = {
    "70": "gpu-self-test-failed",
    "75": "service-unreachable",
    "77": "not-entitled",
    "78": "bad-configuration",
}
WAIT_SECONDS = 16 * 60  # the unit's TimeoutStartSec is 15 minutes
SIGNAL_TRIES = 10  # the role's credentials may take a moment to arrive
UNIQUE_ID_CHARACTERS = 64


def ready() -> bool:
    """Whether the runner says that all its gates are passed."""
    try:
        with urllib.request.urlopen(READY, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def unit_properties() -> dict[str, str]:
    """The unit's state, its result and the exit code of its last run."""
    found = subprocess.run(
        ["systemctl", "show", "-p", "ActiveState,Result,ExecMainStatus", UNIT],
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split("=", 1) for line in found.stdout.splitlines())


def failure() -> str | None:
    """Why the unit has given up, or None while it may still become ready."""
    unit = unit_properties()
    if unit["ActiveState"] != "failed":
        return None
    code = unit["ExecMainStatus"]
    if unit["Result"] in ("exit-code", "start-limit-hit"):
        return REASONS.get(code, f"exit-{code}")
    return unit["Result"]


def outcome(seconds: float = WAIT_SECONDS, pause: float = 2.0) -> str | None:
    """None once the runner is ready, otherwise the reason."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if ready():
            return None
        if (reason := failure()) is not None:
            return reason
        time.sleep(pause)
    return "not-ready-in-time"


def signal(stack: str, resource: str, region: str, reason: str | None) -> None:
    """Send the signal; quiet where the stack does not wait for one.

    Raises:
        botocore.exceptions.ClientError: CloudFormation refused it for another reason.
    """
    import boto3
    from botocore.exceptions import ClientError, NoCredentialsError

    unique = INSTANCE_ID.read_text().strip() + (f".{reason}" if reason else "")
    client = boto3.client("cloudformation", region_name=region)
    for left in reversed(range(SIGNAL_TRIES)):
        try:
            client.signal_resource(
                StackName=stack,
                LogicalResourceId=resource,
                UniqueId=unique[:UNIQUE_ID_CHARACTERS],
                Status="FAILURE" if reason else "SUCCESS",
            )
        except NoCredentialsError:
            if not left:
                raise
            time.sleep(3)
        except ClientError as error:
            if "signal" not in str(error) or "state" not in str(error):
                raise
            print(f"the stack does not wait for a signal: {error}")
            return
        else:
            return


def main() -> int:
    """The command line; 1 if the runner did not become ready."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stack", required=True)
    parser.add_argument("--resource", required=True)
    parser.add_argument("--region", required=True)
    parser.add_argument("--failed", help="signal this failure without waiting")
    given = parser.parse_args()
    reason = given.failed or outcome()
    print(f"s4-runner: {reason or 'ready'}")
    signal(given.stack, given.resource, given.region, reason)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
