"""The role that the template makes allows what the store does, and nothing else.

The stack is made on ministack with AUTH=true, which evaluates policies, conditions and bucket
policies; the role is taken through STS as the instance would, and each call is tried.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from deploy.emulators import client, ministack
from deploy.template_rules import ROLE_ACTIONS
from deploy.tools import REPOSITORY, TEMPLATE, run, tool

pytestmark = pytest.mark.deploy

BUCKET = "s4-role"
OTHER = "somebody-else"
THERE = "team/s4/there"
KEY_ARN = "arn:aws:kms:us-east-1:000000000000:key/11111111-2222-3333-4444-555555555555"
REFUSED = re.compile("AccessDenied|UnauthorizedOperation|403|Forbidden")


@dataclass
class Account:
    """An emulated account with the stack in it, seen as root and as the instance's role."""

    address: str
    certificate: str | None
    role_arn: str
    credentials: dict[str, str]

    def root(self, service: str) -> Any:
        return client(service, self.address, verify=self.certificate)

    def role(self, service: str) -> Any:
        return client(service, self.address, verify=self.certificate, **self.credentials)


def _certificate(directory: Path) -> dict[str, str]:
    """Make a certificate for loopback; the settings that make ministack use it."""
    key, certificate = directory / "key.pem", directory / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return {"USE_SSL": "1", "MINISTACK_SSL_CERT": str(certificate), "MINISTACK_SSL_KEY": str(key)}


def _with_stack(address: str, certificate: str | None) -> Account:
    ec2 = client("ec2", address, verify=certificate)
    vpc = ec2.create_vpc(CidrBlock="10.7.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.7.1.0/24")["Subnet"]["SubnetId"]
    cfn = client("cloudformation", address, verify=certificate)
    given = {
        "NewBucketName": BUCKET,
        "VpcId": vpc,
        "SubnetIds": subnet,
        "HealthCidr": "10.7.0.0/16",
        "KmsKeyArn": KEY_ARN,
        "CheckpointPrefix": "team/s4",
    }
    cfn.create_stack(
        StackName="role",
        TemplateBody=TEMPLATE.read_text(),
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in given.items()],
        Capabilities=["CAPABILITY_IAM"],
    )
    cfn.get_waiter("stack_create_complete").wait(StackName="role", WaiterConfig={"Delay": 1})
    (stack,) = cfn.describe_stacks(StackName="role")["Stacks"]
    outputs = {one["OutputKey"]: one["OutputValue"] for one in stack["Outputs"]}
    sts = client("sts", address, verify=certificate)
    taken = sts.assume_role(RoleArn=outputs["RoleArn"], RoleSessionName="i-0")["Credentials"]
    credentials = {
        "aws_access_key_id": taken["AccessKeyId"],
        "aws_secret_access_key": taken["SecretAccessKey"],
        "aws_session_token": taken["SessionToken"],
    }
    return Account(address, certificate, outputs["RoleArn"], credentials)


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    directory = tmp_path_factory.mktemp("policy")
    settings = _certificate(directory)
    with ministack(directory, AUTH="true", **settings) as address:
        found = _with_stack(address, settings["MINISTACK_SSL_CERT"])
        s3 = found.root("s3")
        # SSE-KMS is the bucket's default; the emulator has no such key, so tests use SSE-S3.
        rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
        s3.put_bucket_encryption(Bucket=BUCKET, ServerSideEncryptionConfiguration={"Rules": [rule]})
        s3.create_bucket(Bucket=OTHER)
        for bucket, key in (
            (BUCKET, THERE),
            (BUCKET, "team/other"),
            (OTHER, "team/s4/x"),
        ):
            s3.put_object(Bucket=bucket, Key=key, Body=b"x")
        yield found


Call = Callable[[Any], Any]


def _upload(s3: Any, key: str = "team/s4/big") -> dict[str, str]:
    found = s3.create_multipart_upload(Bucket=BUCKET, Key=key)
    return {"Bucket": BUCKET, "Key": key, "UploadId": found["UploadId"]}


def _whole_upload(s3: Any) -> Any:
    upload = _upload(s3)
    tag = s3.upload_part(**upload, PartNumber=1, Body=b"part")["ETag"]
    s3.list_parts(**upload)
    parts = {"Parts": [{"PartNumber": 1, "ETag": tag}]}
    return s3.complete_multipart_upload(**upload, MultipartUpload=parts)


ALLOWED: dict[str, Call] = {
    "put": lambda s3: s3.put_object(Bucket=BUCKET, Key="team/s4/a", Body=b"x"),
    "put if absent": lambda s3: s3.put_object(
        Bucket=BUCKET, Key="team/s4/.s4/checkpoints/1.json", Body=b"x", IfNoneMatch="*"
    ),
    "get": lambda s3: s3.get_object(Bucket=BUCKET, Key=THERE),
    "get a range": lambda s3: s3.get_object(Bucket=BUCKET, Key=THERE, Range="bytes=0-0"),
    "head": lambda s3: s3.head_object(Bucket=BUCKET, Key=THERE),
    "delete": lambda s3: s3.delete_object(Bucket=BUCKET, Key="team/s4/gone"),
    "list": lambda s3: s3.list_objects_v2(Bucket=BUCKET, Prefix="team/s4/"),
    "list below": lambda s3: s3.list_objects_v2(Bucket=BUCKET, Prefix="team/s4/run/.s4/"),
    "multipart": _whole_upload,
    "abort": lambda s3: s3.abort_multipart_upload(**_upload(s3)),
    "find uploads": lambda s3: s3.list_multipart_uploads(Bucket=BUCKET, Prefix="team/s4/"),
}

FORBIDDEN: dict[str, tuple[str, Call]] = {
    "put beside": ("s3", lambda s3: s3.put_object(Bucket=BUCKET, Key="team/s4x", Body=b"x")),
    "put above": ("s3", lambda s3: s3.put_object(Bucket=BUCKET, Key="team/x", Body=b"x")),
    "get beside": ("s3", lambda s3: s3.get_object(Bucket=BUCKET, Key="team/other")),
    "delete beside": ("s3", lambda s3: s3.delete_object(Bucket=BUCKET, Key="team/other")),
    "multipart beside": ("s3", lambda s3: _upload(s3, "team/other")),
    "list all": ("s3", lambda s3: s3.list_objects_v2(Bucket=BUCKET)),
    "list above": ("s3", lambda s3: s3.list_objects_v2(Bucket=BUCKET, Prefix="team/")),
    "list beside": ("s3", lambda s3: s3.list_objects_v2(Bucket=BUCKET, Prefix="team/s4x")),
    "list versions": ("s3", lambda s3: s3.list_object_versions(Bucket=BUCKET, Prefix="team/s4/")),
    "delete a version": ("s3", lambda s3: s3.delete_object(
        Bucket=BUCKET, Key=THERE, VersionId="1")),
    "get elsewhere": ("s3", lambda s3: s3.get_object(Bucket=OTHER, Key="team/s4/x")),
    "put elsewhere": ("s3", lambda s3: s3.put_object(Bucket=OTHER, Key="team/s4/y", Body=b"x")),
    "list buckets": ("s3", lambda s3: s3.list_buckets()),
    "read the policy": ("s3", lambda s3: s3.get_bucket_policy(Bucket=BUCKET)),
    "drop the policy": ("s3", lambda s3: s3.delete_bucket_policy(Bucket=BUCKET)),
    "suspend versions": ("s3", lambda s3: s3.put_bucket_versioning(
        Bucket=BUCKET, VersioningConfiguration={"Status": "Suspended"})),
    "change lifecycle": ("s3", lambda s3: s3.delete_bucket_lifecycle(Bucket=BUCKET)),
    "delete the bucket": ("s3", lambda s3: s3.delete_bucket(Bucket=BUCKET)),
    "object acl": ("s3", lambda s3: s3.put_object_acl(
        Bucket=BUCKET, Key=THERE, ACL="public-read")),
    "instances": ("ec2", lambda ec2: ec2.describe_instances()),
    "roles": ("iam", lambda iam: iam.list_roles()),
    "stacks": ("cloudformation", lambda cfn: cfn.describe_stacks(StackName="role")),
    "delete the stack": ("cloudformation", lambda cfn: cfn.delete_stack(StackName="role")),
    "keys": ("kms", lambda kms: kms.list_keys()),
    "data key, not through S3": ("kms", lambda kms: kms.generate_data_key(
        KeyId=KEY_ARN, KeySpec="AES_256")),
    "secrets": ("secretsmanager", lambda one: one.list_secrets()),
    "parameters": ("ssm", lambda ssm: ssm.get_parameter(Name="x")),
}  # fmt: skip


@pytest.mark.parametrize("name", ALLOWED)
def test_the_store_may(name: str, account: Account) -> None:
    ALLOWED[name](account.role("s3"))


@pytest.mark.parametrize("name", FORBIDDEN)
def test_the_role_may_not(name: str, account: Account) -> None:
    service, call = FORBIDDEN[name]
    with pytest.raises(ClientError) as caught:
        call(account.role(service))
    assert REFUSED.search(str(caught.value)), caught.value


def test_the_role_may_signal_its_own_stack_alone(account: Account) -> None:
    cfn = account.role("cloudformation")
    (stack,) = account.root("cloudformation").describe_stacks(StackName="role")["Stacks"]
    signal = {"LogicalResourceId": "AutoScalingGroup", "UniqueId": "i-0", "Status": "SUCCESS"}
    # Allowed, and then refused because nothing waits any more.
    with pytest.raises(ClientError, match="cannot be signaled"):
        cfn.signal_resource(StackName=stack["StackId"], **signal)
    other = stack["StackId"].replace("stack/role", "stack/other")
    with pytest.raises(ClientError) as caught:
        cfn.signal_resource(StackName=other, **signal)
    assert REFUSED.search(str(caught.value))


def test_of_all_operations_exactly_the_listed_actions_are_allowed(account: Account) -> None:
    """The emulator knows no metering service, so here its policy simulator is asked."""
    session = boto3.session.Session()
    universe = set().union(*ROLE_ACTIONS.values())
    for prefix, service in (("s3", "s3"), ("iam", "iam"), ("sts", "sts"), ("ec2", "ec2"),
                            ("aws-marketplace", "meteringmarketplace")):  # fmt: skip
        operations = session.client(service, region_name="us-east-1").meta.service_model
        universe |= {f"{prefix}:{name}" for name in operations.operation_names}
    arns = ["*", f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/team/s4/x"]
    allowed = set().union(*(_simulated(account, sorted(universe), arn) for arn in arns))
    unconditional = ("Objects", "FindDanglingUploads", "Entitlement")
    assert allowed == set().union(*(ROLE_ACTIONS[sid] for sid in unconditional))


def _simulated(account: Account, actions: list[str], arn: str) -> set[str]:
    iam = account.root("iam")
    allowed = set()
    for start in range(0, len(actions), 100):
        found = iam.simulate_principal_policy(
            PolicySourceArn=account.role_arn,
            ActionNames=actions[start : start + 100],
            ResourceArns=[arn],
        )["EvaluationResults"]
        allowed |= {one["EvalActionName"] for one in found if one["EvalDecision"] == "allowed"}
    return allowed


def test_the_bucket_refuses_everyone_without_tls(tmp_path: Path) -> None:
    with ministack(tmp_path, AUTH="true") as address:
        plain = _with_stack(address, None)
        with pytest.raises(ClientError, match="AccessDenied"):
            plain.role("s3").put_object(Bucket=BUCKET, Key="team/s4/a", Body=b"x")


# --- the documents ------------------------------------------------------------------------------


def _role_policies(account: Account) -> dict[str, Any]:
    iam, role = account.root("iam"), account.role_arn.rsplit("/", 1)[1]
    names = iam.list_role_policies(RoleName=role)["PolicyNames"]
    found = {name: iam.get_role_policy(RoleName=role, PolicyName=name) for name in names}
    return {name: policy["PolicyDocument"] for name, policy in found.items()}


def _linted(document: dict[str, Any]) -> str:
    found = run(tool("parliament"), "--string", json.dumps(document))
    return found.stdout + found.stderr


def test_a_policy_linter_finds_nothing(account: Account) -> None:
    for name, document in _role_policies(account).items():
        assert _linted(document).strip() == "", name


def test_the_linter_sees_that_s3_gives_upload_listings_no_prefix(account: Account) -> None:
    document = _role_policies(account)["s4-checkpoints"]
    statement = next(one for one in document["Statement"] if one["Sid"] == "FindDanglingUploads")
    statement["Condition"] = {"StringLike": {"s3:prefix": "team/s4/*"}}
    assert "s3:prefix" in _linted(document)


def test_the_documented_policy_is_the_one_that_is_made(account: Account) -> None:
    text = (REPOSITORY / "docs/iam-policy.md").read_text()
    shown = [json.loads(one) for one in re.findall(r"```json\n(.*?)```", text, re.S)]
    made = _role_policies(account)
    (stack,) = account.root("cloudformation").describe_stacks(StackName="role")["Stacks"]
    wanted = [one for policy in made.values() for one in policy["Statement"]]
    spelled = json.dumps(shown[0]["Statement"])
    for mark, value in (("BUCKET", BUCKET), ("PREFIX", "team/s4"), ("KEY-ARN", KEY_ARN),
                        ("STACK-ID", stack["StackId"]), ("REGION", "us-east-1")):  # fmt: skip
        spelled = spelled.replace(mark, value)
    by_sid = {one["Sid"]: one for one in json.loads(spelled)}
    assert by_sid == {one["Sid"]: one for one in wanted}
