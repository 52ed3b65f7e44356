"""Checkpoints: whole states saved to and loaded from stores.

snapshot    a state, flattened                        relations   which arrays speak of others
writer      a snapshot to a shard and a manifest      reader      the way back
plan        the order arrays are read in              reading     batches of them, decoded
shards      shards in a store, read and written      fetch       blobs by range, ahead
single      self-contained files: save, load         foreign     .pt and .safetensors
repository  manifests and shards below `.s4`          refs        names users choose
run         base -> delta chains of one training     reference   what the next delta stands on
saver       one checkpoint after another             committer   manifest, ref, and after
removal     refs at once, bytes when nobody needs    collect     garbage
rebase      a tip written again whole                check       verify
opening     a run by its URL                         handle      what a save gives back
estimate    what a state would cost
"""

from s4core.checkpoint.check import Finding, Verifier
from s4core.checkpoint.collect import Sweep
from s4core.checkpoint.estimate import Estimate, estimate
from s4core.checkpoint.handle import CheckpointInfo, Progress, SaveHandle
from s4core.checkpoint.opening import open_run
from s4core.checkpoint.options import Options
from s4core.checkpoint.reader import MapLocation, Reader
from s4core.checkpoint.run import Run
from s4core.checkpoint.single import Target, export_state, load, open_reader, save

__all__ = [
    "CheckpointInfo",
    "Estimate",
    "Finding",
    "MapLocation",
    "Options",
    "Progress",
    "Reader",
    "Run",
    "SaveHandle",
    "Sweep",
    "Target",
    "Verifier",
    "estimate",
    "export_state",
    "load",
    "open_reader",
    "open_run",
    "save",
]
