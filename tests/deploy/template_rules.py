"""What must hold of the template and no linter checks: one function each, named for its promise.

A rule takes the parsed template and raises AssertionError. test_template.py runs them all on
the template, and shows with a planted mistake that each can fail.
"""

from __future__ import annotations

import re
from typing import Any

from deploy.cfn import resources, user_data, walk

Template = dict[str, Any]

ROLE_ACTIONS = {
    "Objects": {
        "s3:GetObject",
        "s3:PutObject",
        "s3:DeleteObject",
        "s3:AbortMultipartUpload",
        "s3:ListMultipartUploadParts",
    },
    "ListPrefix": {"s3:ListBucket"},
    "FindDanglingUploads": {"s3:ListBucketMultipartUploads"},
    "Entitlement": {"aws-marketplace:RegisterUsage", "aws-marketplace:MeterUsage"},
    "TellTheStack": {"cloudformation:SignalResource"},
    "BucketKey": {"kms:Decrypt", "kms:GenerateDataKey"},
}
SIZES = [f"{family}.{size}" for family in ("g6", "g6e")
         for size in ("xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge",
                      "24xlarge", "48xlarge")]  # fmt: skip
BUCKET_IN_USE = {"Fn::If": ["MakeBucket", {"Ref": "NewBucketName"}, {"Ref": "ExistingBucketName"}]}


def launch_data(template: Template) -> Any:
    return template["Resources"]["LaunchTemplate"]["Properties"]["LaunchTemplateData"]


def bucket(template: Template) -> Any:
    return template["Resources"]["Bucket"]["Properties"]


def statements(template: Template) -> dict[str, Any]:
    """The role's statements by Sid, the conditional policy among them."""
    policies = template["Resources"]["Role"]["Properties"]["Policies"]
    found = [one for key, value in walk(policies) if key == "Statement" for one in value]
    return {one["Sid"]: one for one in found}


def every_volume_is_encrypted(template: Template) -> None:
    devices = launch_data(template)["BlockDeviceMappings"]
    assert devices
    assert all(device["Ebs"]["Encrypted"] is True for device in devices)


def the_bucket_and_its_policy_outlive_the_stack(template: Template) -> None:
    for name in ("Bucket", "BucketPolicy"):
        assert template["Resources"][name].get("DeletionPolicy") == "Retain", name
        assert template["Resources"][name].get("UpdateReplacePolicy") == "Retain", name


def requests_without_tls_are_refused(template: Template) -> None:
    document = template["Resources"]["BucketPolicy"]["Properties"]["PolicyDocument"]
    found = {one["Sid"]: one for one in document["Statement"]}
    wanted = {
        "RefuseWithoutTls": {"Bool": {"aws:SecureTransport": "false"}},
        "RefuseOldTls": {"NumericLessThan": {"s3:TlsVersion": "1.2"}},
    }
    assert set(found) == set(wanted)
    arn = "arn:${AWS::Partition}:s3:::${NewBucketName}"
    for sid, condition in wanted.items():
        rest = {k: v for k, v in found[sid].items() if k != "Sid"}
        assert rest == {"Effect": "Deny", "Principal": "*", "Action": "s3:*",
                        "Resource": [{"Fn::Sub": arn}, {"Fn::Sub": arn + "/*"}],
                        "Condition": condition}, sid  # fmt: skip


def the_bucket_is_private_encrypted_and_versioned(template: Template) -> None:
    found = bucket(template)
    assert set(found["PublicAccessBlockConfiguration"].values()) == {True}
    assert len(found["PublicAccessBlockConfiguration"]) == 4
    assert found["OwnershipControls"] == {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
    assert found["VersioningConfiguration"] == {"Status": "Enabled"}
    (rule,) = found["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    default = rule["ServerSideEncryptionByDefault"]
    assert default["SSEAlgorithm"] == {"Fn::If": ["UseKms", "aws:kms", "AES256"]}
    assert default["KMSMasterKeyID"]["Fn::If"][:2] == ["UseKms", {"Ref": "KmsKeyArn"}]


def nothing_is_kept_for_ever_by_accident(template: Template) -> None:
    rules = bucket(template)["LifecycleConfiguration"]["Rules"]
    assert all(rule["Status"] == "Enabled" for rule in rules)
    whole = {k: v for rule in rules for k, v in rule.items() if k not in ("Id", "Status")}
    assert whole == {
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
        "NoncurrentVersionExpiration": {"NoncurrentDays": {"Ref": "NoncurrentVersionDays"}},
        "ExpiredObjectDeleteMarker": True,
    }


def the_role_allows_exactly_these_actions(template: Template) -> None:
    found = statements(template)
    assert all(one["Effect"] == "Allow" for one in found.values())
    assert not any("NotAction" in one or "NotResource" in one for one in found.values())
    listed = {
        sid: {one["Action"]} if isinstance(one["Action"], str) else set(one["Action"])
        for sid, one in found.items()
    }
    assert listed == ROLE_ACTIONS


def the_role_reaches_one_prefix_of_one_bucket(template: Template) -> None:
    found = statements(template)
    arn = "arn:${AWS::Partition}:s3:::${Name}"
    for sid, suffix in (("Objects", "/${CheckpointPrefix}/*"), ("ListPrefix", ""),
                        ("FindDanglingUploads", "")):  # fmt: skip
        wanted = {"Fn::Sub": [arn + suffix, {"Name": BUCKET_IN_USE}]}
        assert found[sid]["Resource"] == wanted, sid
    prefix = {"StringLike": {"s3:prefix": {"Fn::Sub": "${CheckpointPrefix}/*"}}}
    assert found["ListPrefix"].get("Condition") == prefix
    assert found["BucketKey"]["Resource"] == {"Ref": "KmsKeyArn"}
    assert list(found["BucketKey"]["Condition"]) == ["StringEquals"]
    assert found["TellTheStack"]["Resource"] == {"Ref": "AWS::StackId"}


def only_the_session_manager_policy_may_be_attached(template: Template) -> None:
    attached = template["Resources"]["Role"]["Properties"]["ManagedPolicyArns"]
    policy = {"Fn::Sub": "arn:${AWS::Partition}:iam::aws:policy/AmazonSSMManagedInstanceCore"}
    assert attached == {"Fn::If": ["UseSessionManager", [policy], {"Ref": "AWS::NoValue"}]}
    kinds = {resource["Type"] for resource in template["Resources"].values()}
    assert not kinds & {"AWS::IAM::Policy", "AWS::IAM::ManagedPolicy", "AWS::IAM::RolePolicy"}
    assert template["Parameters"]["AllowSessionManager"]["Default"] == "no"


def metadata_needs_a_token_and_stays_on_the_machine(template: Template) -> None:
    options = launch_data(template)["MetadataOptions"]
    assert options == {"HttpEndpoint": "enabled", "HttpTokens": "required",
                       "HttpPutResponseHopLimit": 1}  # fmt: skip


def only_port_8080_is_open_and_not_to_the_world(template: Template) -> None:
    for name, group in resources(template, "AWS::EC2::SecurityGroup").items():
        for rule in _rules(group["Properties"].get("SecurityGroupIngress", [])):
            assert (rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) == ("tcp", 8080, 8080)
            source = rule.get("CidrIp") or rule["SourceSecurityGroupId"]
            assert source in ({"Ref": "HealthCidr"}, {"Ref": "LoadBalancerSecurityGroup"}), name
            assert "CidrIpv6" not in rule
    kinds = {resource["Type"] for resource in template["Resources"].values()}
    assert "AWS::EC2::SecurityGroupIngress" not in kinds


def only_https_goes_out(template: Template) -> None:
    for name, group in resources(template, "AWS::EC2::SecurityGroup").items():
        rules = _rules(group["Properties"]["SecurityGroupEgress"])
        assert rules, f"{name}: without a rule everything is allowed out"
        for rule in rules:
            ports = (rule["IpProtocol"], rule["FromPort"], rule["ToPort"])
            to_runner = rule.get("DestinationSecurityGroupId") == {"Ref": "RunnerSecurityGroup"}
            assert ports == (("tcp", 8080, 8080) if to_runner else ("tcp", 443, 443)), name


def _rules(found: list[Any]) -> list[dict[str, Any]]:
    """The rules in a list, those inside !If too."""
    taken = [one["Fn::If"][1] if "Fn::If" in one else one for one in found]
    return [one for one in taken if one != {"Ref": "AWS::NoValue"}]


def there_is_no_ssh_and_no_public_address(template: Template) -> None:
    data = launch_data(template)
    assert "KeyName" not in data
    (interface,) = data["NetworkInterfaces"]
    assert interface["AssociatePublicIpAddress"] is False
    if "LoadBalancer" in template["Resources"]:
        assert template["Resources"]["LoadBalancer"]["Properties"]["Scheme"] == "internal"


def an_address_range_has_no_default_and_cannot_be_the_world(template: Template) -> None:
    ranges = {k: v for k, v in template["Parameters"].items() if k.endswith("Cidr")}
    assert set(ranges) == {"HealthCidr"}
    for parameter in ranges.values():
        assert "Default" not in parameter
        pattern = re.compile(parameter["AllowedPattern"])
        assert all(pattern.fullmatch(one) for one in ("10.0.0.0/16", "192.168.4.7/32"))
        for bad in ("0.0.0.0/0", "10.0.0.0/0", "10.0.0.0/7", "256.0.0.0/8", "10.0.0.0", "::/0"):
            assert not pattern.fullmatch(bad), bad


def only_g6_and_g6e_sizes_can_be_chosen(template: Template) -> None:
    parameter = template["Parameters"]["InstanceType"]
    assert parameter["AllowedValues"] == SIZES
    assert parameter["Default"] in SIZES


def every_mapped_region_passes_the_rule_and_no_other(template: Template) -> None:
    (assertion,) = template["Rules"]["KnownRegion"]["Assertions"]
    allowed = assertion["Assert"]["Fn::Or"][1]["Fn::Contains"][0]
    mapped = template["Mappings"]["ImageByRegion"]
    assert allowed == list(mapped)
    assert all(re.fullmatch("ami-[0-9a-f]{17}", one["Ami"]) for one in mapped.values())


def every_parameter_has_a_group_and_a_label(template: Template) -> None:
    shown = template["Metadata"]["AWS::CloudFormation::Interface"]
    grouped = [name for group in shown["ParameterGroups"] for name in group["Parameters"]]
    assert sorted(grouped) == sorted(template["Parameters"])
    assert sorted(shown["ParameterLabels"]) == sorted(template["Parameters"])
    assert all("Description" in one for one in template["Parameters"].values())


def the_customer_cannot_choose_how_entitlement_is_checked(template: Template) -> None:
    words = re.compile("entitle|product.?code|metering|public.?key|nonce|self.?test", re.I)
    assert not [name for name in template["Parameters"] if words.search(name)]
    assert not words.search(user_data(template))


def one_instance_that_a_denial_does_not_replace_for_ever(template: Template) -> None:
    group = template["Resources"]["AutoScalingGroup"]
    assert group["Properties"]["MaxSize"] == "1"
    assert group["Properties"]["HealthCheckType"] == "EC2"
    update = group["UpdatePolicy"]["AutoScalingRollingUpdate"]
    assert (update["MinInstancesInService"], update["WaitOnResourceSignals"]) == (0, True)
    assert group["CreationPolicy"]["ResourceSignal"]["Count"] == 1


def user_data_cannot_wait_for_itself(template: Template) -> None:
    script = user_data(template)
    assert "systemctl start --no-block s4-runner.service" in script
    assert "systemctl enable s4-runner.service" in script
    assert "--now" not in script
    assert "cloud-final" not in script


def user_data_takes_only_values_that_a_shell_cannot_read_as_code(template: Template) -> None:
    used = set(re.findall(r"\$\{([^}]+)\}", user_data(template)))
    own = {name for name in used if not name.startswith("AWS::")} - {"BucketInUse"}
    for name in own | {"NewBucketName", "ExistingBucketName"}:
        pattern = re.compile(template["Parameters"][name]["AllowedPattern"])
        for bad in (
            "a'b",
            'a"b',
            "a`b`",
            "$(a)",
            "a\nb",
            "a;b",
            "a\\b",
            "a&b",
            "a|b",
            "SETTINGS\n",
        ):
            assert not pattern.fullmatch(bad), (name, bad)


RULES = [
    every_volume_is_encrypted,
    the_bucket_and_its_policy_outlive_the_stack,
    requests_without_tls_are_refused,
    the_bucket_is_private_encrypted_and_versioned,
    nothing_is_kept_for_ever_by_accident,
    the_role_allows_exactly_these_actions,
    the_role_reaches_one_prefix_of_one_bucket,
    only_the_session_manager_policy_may_be_attached,
    metadata_needs_a_token_and_stays_on_the_machine,
    only_port_8080_is_open_and_not_to_the_world,
    only_https_goes_out,
    there_is_no_ssh_and_no_public_address,
    an_address_range_has_no_default_and_cannot_be_the_world,
    only_g6_and_g6e_sizes_can_be_chosen,
    every_mapped_region_passes_the_rule_and_no_other,
    every_parameter_has_a_group_and_a_label,
    the_customer_cannot_choose_how_entitlement_is_checked,
    one_instance_that_a_denial_does_not_replace_for_ever,
    user_data_cannot_wait_for_itself,
    user_data_takes_only_values_that_a_shell_cannot_read_as_code,
]
