"""The CloudFormation template: clean for the linters, right where they do not look, and it
makes, refuses and deletes what it says on an emulator that runs CloudFormation."""

from __future__ import annotations

import base64
import copy
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from deploy.cfn import parsed, walk
from deploy.emulators import client, ministack
from deploy.template_rules import RULES, Template
from deploy.tools import TEMPLATE, run, tool

pytestmark = pytest.mark.deploy

# What checkov is told to skip, with a reason beside each in the template.
SKIPPED = {
    ("CKV_AWS_18", "AWS::S3::Bucket.Bucket"),
    ("CKV_AWS_19", "AWS::S3::Bucket.Bucket"),
    ("CKV_AWS_23", "AWS::EC2::SecurityGroup.HealthSecurityGroup"),
}


@pytest.fixture(scope="module")
def template() -> Template:
    return parsed(TEMPLATE)


def test_cfn_lint_finds_nothing() -> None:
    found = run(tool("cfn-lint"), "--include-checks", "I", "--", TEMPLATE)
    assert found.returncode == 0, found.stdout


def test_checkov_finds_nothing_and_skips_only_what_is_explained() -> None:
    found = run(tool("checkov"), "--skip-download", "--output", "json", "-f", TEMPLATE)
    report = json.loads(found.stdout)
    results = report["results"]
    assert not [(one["check_id"], one["resource"]) for one in results["failed_checks"]]
    assert len(results["passed_checks"]) >= 20
    assert {(one["check_id"], one["resource"]) for one in results["skipped_checks"]} == SKIPPED


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_holds(rule: Callable[[Template], None], template: Template) -> None:
    rule(template)


def _at(node: Any, path: str) -> Any:
    for part in path.split("/"):
        node = node[int(part)] if isinstance(node, list) else node[part]
    return node


DATA = "Resources/LaunchTemplate/Properties/LaunchTemplateData"
ROLE = "Resources/Role/Properties/Policies"
BUCKET = "Resources/Bucket/Properties"
TLS = "Resources/BucketPolicy/Properties/PolicyDocument/Statement"
REMOVED = object()

# A mistake: where, which key, what it becomes, and the one rule that must see it.
MISTAKES = [
    (f"{DATA}/BlockDeviceMappings/0/Ebs", "Encrypted", False, "every_volume_is"),
    (f"{DATA}/BlockDeviceMappings/0/Ebs", "Encrypted", REMOVED, "every_volume_is"),
    ("Resources/Bucket", "DeletionPolicy", REMOVED, "the_bucket_and_its"),
    ("Resources/Bucket", "UpdateReplacePolicy", "Delete", "the_bucket_and_its"),
    ("Resources/BucketPolicy", "DeletionPolicy", REMOVED, "the_bucket_and_its"),
    (f"{TLS}/0/Condition/Bool", "aws:SecureTransport", "true", "requests_without_tls"),
    (f"{TLS}/0", "Effect", "Allow", "requests_without_tls"),
    (f"{TLS}/0/Resource", 1, REMOVED, "requests_without_tls"),
    (f"{TLS}/1/Condition/NumericLessThan", "s3:TlsVersion", "1.0", "requests_without_tls"),
    (f"{BUCKET}/PublicAccessBlockConfiguration", "BlockPublicAcls", False,
     "the_bucket_is_private"),
    (f"{BUCKET}/VersioningConfiguration", "Status", "Suspended", "the_bucket_is_private"),
    (BUCKET, "OwnershipControls", {"Rules": []}, "the_bucket_is_private"),
    (f"{BUCKET}/LifecycleConfiguration/Rules", 0, REMOVED, "nothing_is_kept"),
    (f"{BUCKET}/LifecycleConfiguration/Rules/1", "Status", "Disabled", "nothing_is_kept"),
    (f"{ROLE}/0/PolicyDocument/Statement/0", "Action", "s3:*", "the_role_allows"),
    (f"{ROLE}/0/PolicyDocument/Statement/0/Action", 2, REMOVED, "the_role_allows"),
    (f"{ROLE}/1/PolicyDocument/Statement/0/Action", 1, "aws-marketplace:*", "the_role_allows"),
    (f"{ROLE}/0/PolicyDocument/Statement/0", "Resource", "*", "the_role_reaches"),
    (f"{ROLE}/0/PolicyDocument/Statement/1", "Condition", REMOVED, "the_role_reaches"),
    (f"{ROLE}/2/PolicyDocument/Statement/0", "Resource", "*", "the_role_reaches"),
    ("Resources/Role/Properties", "ManagedPolicyArns",
     ["arn:aws:iam::aws:policy/AdministratorAccess"], "only_the_session_manager"),
    ("Parameters/AllowSessionManager", "Default", "yes", "only_the_session_manager"),
    (f"{DATA}/MetadataOptions", "HttpTokens", "optional", "metadata_needs"),
    (f"{DATA}/MetadataOptions", "HttpPutResponseHopLimit", 2, "metadata_needs"),
    ("Resources/HealthSecurityGroup/Properties/SecurityGroupIngress/0", "CidrIp", "0.0.0.0/0",
     "only_port_8080"),
    ("Resources/HealthSecurityGroup/Properties/SecurityGroupIngress/0", "FromPort", 22,
     "only_port_8080"),
    ("Resources/HealthSecurityGroup/Properties", "SecurityGroupEgress", [], "only_https"),
    ("Resources/RunnerSecurityGroup/Properties/SecurityGroupEgress/0", "ToPort", 65535,
     "only_https"),
    (DATA, "KeyName", "mine", "there_is_no_ssh"),
    (f"{DATA}/NetworkInterfaces/0", "AssociatePublicIpAddress", True, "there_is_no_ssh"),
    ("Resources/LoadBalancer/Properties", "Scheme", "internet-facing", "there_is_no_ssh"),
    ("Parameters/HealthCidr", "Default", "10.0.0.0/8", "an_address_range"),
    ("Parameters/HealthCidr", "AllowedPattern", "^[0-9./]+$", "an_address_range"),
    ("Parameters/InstanceType/AllowedValues", 0, "g5.xlarge", "only_g6"),
    ("Mappings/ImageByRegion", "eu-west-1", {"Ami": "ami-00000000000000000"}, "every_mapped"),
    ("Mappings/ImageByRegion/us-east-1", "Ami", "", "every_mapped"),
    ("Parameters", "Forgotten", {"Type": "String"}, "every_parameter"),
    ("Resources/AutoScalingGroup/Properties", "HealthCheckType", "ELB", "one_instance"),
    ("Resources/AutoScalingGroup/UpdatePolicy/AutoScalingRollingUpdate", "MinInstancesInService",
     1, "one_instance"),
    ("Parameters/TrainingCommand", "AllowedPattern", "^.*$", "user_data_takes"),
    ("Parameters/CheckpointPrefix", "AllowedPattern", "^[^/].*$", "user_data_takes"),
]  # fmt: skip


def _planted(template: Template, path: str, key: Any, value: Any) -> Template:
    broken = copy.deepcopy(template)
    node = _at(broken, path)
    if value is REMOVED:
        del node[key]
    else:
        node[key] = value
    return broken


def _complaints(template: Template) -> set[str]:
    found = set()
    for rule in RULES:
        try:
            rule(template)
        except (AssertionError, KeyError):
            found.add(rule.__name__)
    return found


@pytest.mark.parametrize(("path", "key", "value", "seen_by"), MISTAKES)
def test_a_planted_mistake_is_seen_by_its_rule_alone(
    path: str, key: Any, value: Any, seen_by: str, template: Template
) -> None:
    complaints = _complaints(_planted(template, path, key, value))
    assert len(complaints) == 1, complaints
    assert next(iter(complaints)).startswith(seen_by)


@pytest.mark.parametrize(
    ("old", "new", "seen_by"),
    [
        ("--no-block ", "", "user_data_cannot"),
        ("enable s4", "enable --now s4", "user_data_cannot"),
        ("S4_RUNNER_HEALTH", "S4_ENTITLEMENT_MODE", "the_customer_cannot"),
    ],
)
def test_a_mistake_in_user_data_is_seen(
    old: str, new: str, seen_by: str, template: Template
) -> None:
    path = f"{DATA}/UserData/Fn::Base64/Fn::Sub"
    script = _at(template, path)[0]
    assert old in script
    complaints = _complaints(_planted(template, path, 0, script.replace(old, new)))
    assert [name for name in complaints if name.startswith(seen_by)]


def test_every_rule_can_fail() -> None:
    seen = {mistake[3] for mistake in MISTAKES} | {"user_data_cannot", "the_customer_cannot"}
    blind = [rule.__name__ for rule in RULES
             if not any(rule.__name__.startswith(one) for one in seen)]  # fmt: skip
    assert not blind


# --- on the emulator ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ministack(tmp_path_factory.mktemp("ministack")) as address:
        yield address


@pytest.fixture(scope="module")
def network(cloud: str) -> dict[str, str]:
    ec2 = client("ec2", cloud)
    vpc, other = (
        ec2.create_vpc(CidrBlock=one)["Vpc"]["VpcId"] for one in ("10.7.0.0/16", "10.8.0.0/16")
    )
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.7.1.0/24")["Subnet"]["SubnetId"]
    stray = ec2.create_subnet(VpcId=other, CidrBlock="10.8.1.0/24")["Subnet"]["SubnetId"]
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    return {"vpc": vpc, "subnet": subnet, "stray": stray, "table": table}


def _parameters(network: dict[str, str], **changed: str) -> list[dict[str, str]]:
    given = {"NewBucketName": "s4-new", "VpcId": network["vpc"], "SubnetIds": network["subnet"],
             "HealthCidr": "10.7.0.0/16", **changed}  # fmt: skip
    return [{"ParameterKey": k, "ParameterValue": v} for k, v in given.items() if v != "-"]


def _settled(cfn: Any, name: str, seconds: float = 60) -> dict[str, Any]:
    end = time.monotonic() + seconds
    while True:
        (stack,) = cfn.describe_stacks(StackName=name)["Stacks"]
        if not stack["StackStatus"].endswith("_IN_PROGRESS"):
            found: dict[str, Any] = stack
            return found
        assert time.monotonic() < end, stack
        time.sleep(0.1)


def _create(cfn: Any, name: str, parameters: list[dict[str, str]]) -> str:
    """Ask for the stack; its id."""
    body = TEMPLATE.read_text()
    found: str = cfn.create_stack(
        StackName=name, TemplateBody=body, Parameters=parameters, Capabilities=["CAPABILITY_IAM"]
    )["StackId"]
    return found


def _made(cfn: Any, name: str, parameters: list[dict[str, str]]) -> dict[str, str]:
    stack = _settled(cfn, _create(cfn, name, parameters))
    assert stack["StackStatus"] == "CREATE_COMPLETE", stack
    return {one["OutputKey"]: one["OutputValue"] for one in stack["Outputs"]}


def _deleted(cfn: Any, name: str) -> None:
    (stack,) = cfn.describe_stacks(StackName=name)["Stacks"]
    cfn.delete_stack(StackName=name)
    assert _settled(cfn, stack["StackId"])["StackStatus"] == "DELETE_COMPLETE"


def test_everything_is_made_and_all_but_the_bucket_is_deleted(
    cloud: str, network: dict[str, str], template: Template
) -> None:
    cfn, s3, ec2 = (client(name, cloud) for name in ("cloudformation", "s3", "ec2"))
    parameters = _parameters(
        network,
        NewBucketName="s4-whole",
        CreateLoadBalancer="yes",
        PurchaseOption="spot",
        S3EndpointRouteTableIds=network["table"],
        AllowSessionManager="yes",
    )
    outputs = _made(cfn, "whole", parameters)
    listed = cfn.list_stack_resources(StackName="whole")["StackResourceSummaries"]
    assert {one["LogicalResourceId"] for one in listed} == set(template["Resources"])
    assert outputs["CheckpointUrl"] == "s3://s4-whole/s4"
    assert set(outputs) == set(template["Outputs"])
    found = ec2.describe_launch_template_versions(LaunchTemplateId=outputs["LaunchTemplateId"])
    data = found["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    assert data["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert "S4_STORE=s3://s4-whole/s4\n" in base64.b64decode(data["UserData"]).decode()
    _deleted(cfn, "whole")
    assert "s4-whole" in {one["Name"] for one in s3.list_buckets()["Buckets"]}
    assert "RefuseWithoutTls" in s3.get_bucket_policy(Bucket="s4-whole")["Policy"]
    assert s3.get_bucket_versioning(Bucket="s4-whole")["Status"] == "Enabled"


def test_with_an_existing_bucket_no_bucket_is_made_or_touched(
    cloud: str, network: dict[str, str]
) -> None:
    cfn, s3 = client("cloudformation", cloud), client("s3", cloud)
    s3.create_bucket(Bucket="customer.bucket")
    before = {one["Name"] for one in s3.list_buckets()["Buckets"]}
    parameters = _parameters(
        network,
        NewBucketName="",
        ExistingBucketName="customer.bucket",
        CheckpointPrefix="a/b",
    )
    outputs = _made(cfn, "existing", parameters)
    listed = cfn.list_stack_resources(StackName="existing")["StackResourceSummaries"]
    kinds = {one["ResourceType"] for one in listed}
    assert not kinds & {"AWS::S3::Bucket", "AWS::S3::BucketPolicy", "AWS::EC2::VPCEndpoint"}
    assert outputs["CheckpointUrl"] == "s3://customer.bucket/a/b"
    assert "HealthUrl" not in outputs
    _deleted(cfn, "existing")
    assert {one["Name"] for one in s3.list_buckets()["Buckets"]} == before


REFUSED = [
    ({"HealthCidr": "0.0.0.0/0"}, "whole internet is refused"),
    ({"HealthCidr": "-"}, "HealthCidr"),
    ({"VpcId": "-"}, "VpcId"),
    ({"InstanceType": "t3.micro"}, "InstanceType"),
    ({"InstanceType": "g5.xlarge"}, "InstanceType"),
    ({"ExistingBucketName": "another"}, "not both"),
    ({"NewBucketName": ""}, "OneBucket"),
    ({"NewBucketName": "Upper"}, "NewBucketName"),
    ({"CheckpointPrefix": "/absolute"}, "CheckpointPrefix"),
    ({"CheckpointPrefix": "a//b"}, "CheckpointPrefix"),
    ({"CheckpointPrefix": "a/*"}, "CheckpointPrefix"),
    ({"CheckpointPrefix": "../up"}, "CheckpointPrefix"),
    ({"TrainingCommand": "python train.py; curl x"}, "Put anything else into a script"),
    ({"TrainingCommand": "$(id)"}, "Put anything else into a script"),
    ({"KmsKeyArn": "alias/mine"}, "The ARN of a key"),
    ({"AmiId": "ami-12"}, "AmiId"),
    ({"RootVolumeGiB": "10"}, "RootVolumeGiB"),
    ({"NoncurrentVersionDays": "0"}, "NoncurrentVersionDays"),
    ({"PurchaseOption": "free"}, "PurchaseOption"),
    ({"SubnetIds": "stray"}, "Every subnet must belong to the VPC"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=lambda one: str(one)[:40])
def test_bad_parameters_are_refused(
    changed: dict[str, str], message: str, cloud: str, network: dict[str, str]
) -> None:
    cfn = client("cloudformation", cloud)
    parameters = _parameters(network, **{k: network.get(v, v) for k, v in changed.items()})
    with pytest.raises(ClientError, match="ValidationError") as caught:
        _create(cfn, "refused", parameters)
    assert message in str(caught.value)


def test_a_region_without_an_image_is_refused_unless_an_image_is_named(
    cloud: str, network: dict[str, str]
) -> None:
    cfn = client("cloudformation", cloud, region="eu-west-3")
    with pytest.raises(ClientError, match="no image in this Region"):
        _create(cfn, "nowhere", _parameters(network))


def test_no_secret_and_no_account_is_in_the_template(template: Template) -> None:
    text = TEMPLATE.read_text()
    assert "AKIA" not in text
    assert not [key for key, _ in walk(template) if "password" in str(key).lower()]
    assert Path(TEMPLATE).stat().st_size < 51_200, "CreateStack takes no larger body"
    assert os.access(TEMPLATE, os.R_OK)
