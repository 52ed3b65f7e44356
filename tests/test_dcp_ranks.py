"""Distributed checkpoints by several processes: any number saves, any number loads.

Processes take long to start, so each does many actions, in order; a test asserts that its
own were reached and went as they must.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import dcp_ranks
import pytest
import torch
from bits import assert_same_state
from dcp_plans import group_of_one, manifest_of  # noqa: F401
from launching import ROOT, run_ranks
from s3_server import S3Server

import s4weights

SCRIPT = ROOT / "tests" / "dcp_ranks.py"


@dataclass(frozen=True)
class Trainings:
    """What several trainings did below one directory."""

    root: Path

    def at(self, name: str) -> tuple[str, str]:
        """Address of a checkpoint, and of what torch saved of the same state."""
        return f"{self.root}/{name}", f"{self.root}/{name}.pt"

    def run(self, count: int, *actions: str) -> list[int]:
        """Run processes; an action is its own name and that of a checkpoint."""
        asked = [
            "@".join((action, *self.at(name)))
            for action, name in (action.split() for action in actions)
        ]
        return run_ranks(SCRIPT, str(self.root / f"done-{count}"), *asked, ranks=count)

    def did(self, count: int, *actions: str) -> None:
        """Assert that processes did actions, all in the way they had to."""
        lines = (self.root / f"done-{count}").read_text().splitlines()
        done = [line.split("@")[:2] for line in lines]
        for action, name in (action.split() for action in actions):
            assert [action, self.at(name)[0]] in done, f"{action} {name}: not among {done}"


@pytest.fixture(scope="module")
def trainings(
    tmp_path_factory: pytest.TempPathFactory,
    group_of_one: None,  # noqa: F811
) -> Trainings:
    found = Trainings(tmp_path_factory.mktemp("ranks"))
    dcp_ranks.save(*found.at("one"))
    found.run(
        2,
        *("save two", "load one", "replicated same", "behind behind", "stock stock"),
        "failing fails",
    )
    found.run(3, "save three", "load one", "load two")
    found.run(2, "load three", "killed killed")
    return found


def test_saved_by_any_number_of_ranks_and_loaded_by_any(trainings: Trainings) -> None:
    trainings.did(2, "save two", "load one", "load three")
    trainings.did(3, "save three", "load one", "load two")
    for name in ("one", "two", "three"):
        dcp_ranks.load(*trainings.at(name))


@pytest.mark.parametrize(("count", "name"), [(1, "one"), (2, "two"), (3, "three")])
def test_load_puts_the_parts_together(trainings: Trainings, count: int, name: str) -> None:
    url, file = trainings.at(name)
    expected, found = torch.load(file), s4weights.load(url)
    for part in ("model", "optimizer"):
        assert_same_state(expected[part], found[part], stride=False)
    assert sorted(found["rng"]) == [f"r{rank}" for rank in range(count)]
    assert found["values"]["name"] == "a/b"
    shards = json.loads(manifest_of(Path(url)).read_text())["shards"]
    names = [shard["key"].split("/")[1] for shard in shards]
    assert names == [f"{rank}-0.s4" for rank in range(count)]


def test_the_training_goes_on_while_it_is_saved(trainings: Trainings) -> None:
    trainings.did(2, "behind behind", "stock stock")


def test_what_all_ranks_have_is_written_once(trainings: Trainings) -> None:
    trainings.did(2, "replicated same")
    manifest = json.loads(manifest_of(trainings.root / "same").read_text())
    # Tied tensors are two items, which torch may give to two ranks.
    assert manifest["raw_bytes"] - 4 * 40 * 40 * 4 in (9 * 9 * 4, 2 * 9 * 9 * 4)
    assert len(manifest["shards"]) == 2


def test_a_failing_rank_leaves_no_checkpoint_and_older_ones_unharmed(
    trainings: Trainings,
) -> None:
    trainings.did(2, "failing fails")
    assert not (trainings.root / "fails-new").exists()


def test_a_killed_rank_leaves_no_checkpoint_and_older_ones_unharmed(
    trainings: Trainings,
) -> None:
    trainings.did(2, "killed killed")
    assert not (trainings.root / "killed-new").exists()
    assert len(s4weights.load(trainings.root / "killed")) == 4
    committed = {file.stem for file in trainings.root.glob(".s4/checkpoints/*")}
    left = {file.name for file in trainings.root.glob(".s4/shards/*")} - committed
    # What saves left that never committed is garbage, and gc says so.
    run = s4weights.open(trainings.root)
    assert left
    assert left <= set(run.gc(grace_seconds=0.0, dry_run=True).swept)


@pytest.mark.s3
def test_two_ranks_on_s3(tmp_path: Path, s3_url: str, s3_environment: S3Server) -> None:
    saved, behind = (f"{s3_url}/run/{n}@{tmp_path}/{n}.pt" for n in ("saved", "behind"))
    actions = [f"save@{saved}", f"load@{saved}", f"behind@{behind}"]
    assert run_ranks(SCRIPT, str(tmp_path / "done"), *actions, ranks=2) == [0, 0]
    expected = torch.load(tmp_path / "saved.pt")["model"]
    found = s4weights.load(f"{s3_url}/run/saved")["model"]
    assert_same_state(expected, found, stride=False)
