"""A CloudFormation template as plain data: ``!Ref x`` is ``{"Ref": "x"}`` and so on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

PLAIN_NAMES = {"Ref", "Condition"}  # every other tag is the short form of Fn::NAME


class _Loader(yaml.SafeLoader):
    """SafeLoader that knows CloudFormation's tags."""


def _function(loader: _Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    name = suffix if suffix in PLAIN_NAMES else f"Fn::{suffix}"
    if isinstance(node, yaml.ScalarNode):
        text = loader.construct_scalar(node)
        return {name: text.split(".", 1) if suffix == "GetAtt" else text}
    if isinstance(node, yaml.SequenceNode):
        return {name: loader.construct_sequence(node, deep=True)}
    assert isinstance(node, yaml.MappingNode)
    return {name: loader.construct_mapping(node, deep=True)}


_Loader.add_multi_constructor("!", _function)


def parsed(path: Path) -> dict[str, Any]:
    """The template in `path`."""
    found: dict[str, Any] = yaml.load(path.read_text(), Loader=_Loader)
    return found


def walk(node: Any) -> Iterator[tuple[str, Any]]:
    """Every key and value below `node`, outermost first."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield key, value
            yield from walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from walk(value)


def resources(template: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """The resources of type `kind`, by logical id; at least one."""
    found = {k: v for k, v in template["Resources"].items() if v["Type"] == kind}
    assert found, f"no resource of type {kind}"
    return found


def user_data(template: dict[str, Any]) -> str:
    """The UserData script as written, before substitution."""
    data = template["Resources"]["LaunchTemplate"]["Properties"]["LaunchTemplateData"]
    text: str = data["UserData"]["Fn::Base64"]["Fn::Sub"][0]
    return text
