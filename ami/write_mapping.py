"""Put the image ids of a build into the template's ImageByRegion mapping.

    python ami/write_mapping.py manifest.json deploy/cfn-train-runner.yaml

Reads the last build in Packer's manifest. Every Region of the mapping must have an id in it,
and the other way round: a Region left with an old image is an error, not a surprise.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

LINE = re.compile(r"^    ([a-z0-9-]+): \{Ami: ami-[0-9a-f]{17}\}$", re.M)
IMAGE = re.compile(r"ami-[0-9a-f]{17}")


def images(manifest: str) -> dict[str, str]:
    """Region to image id, of the manifest's last run.

    Raises:
        ValueError: The manifest holds no such build, or an id that is none.
    """
    found = json.loads(manifest)
    last = [one for one in found["builds"] if one["packer_run_uuid"] == found["last_run_uuid"]]
    if len(last) != 1:
        raise ValueError(f"manifest: expected one build of the last run, found {len(last)}")
    pairs = [one.partition(":") for one in last[0]["artifact_id"].split(",")]
    by_region = {region: image for region, _, image in pairs}
    bad = [image for image in by_region.values() if not IMAGE.fullmatch(image)]
    if bad:
        raise ValueError(f"manifest: not image ids: {bad}")
    return by_region


def written(template: str, by_region: dict[str, str]) -> str:
    """The template with these ids.

    Raises:
        ValueError: The mapping's Regions are not those of `by_region`.
    """
    mapped = LINE.findall(template)
    if sorted(mapped) != sorted(by_region):
        raise ValueError(f"template maps {sorted(mapped)}, the build made {sorted(by_region)}")
    return LINE.sub(lambda hit: f"    {hit[1]}: {{Ami: {by_region[hit[1]]}}}", template)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("manifest", type=Path)
    parser.add_argument("template", type=Path)
    given = parser.parse_args()
    ids = images(given.manifest.read_text())
    given.template.write_text(written(given.template.read_text(), ids))


if __name__ == "__main__":
    main()
