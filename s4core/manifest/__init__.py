"""The manifest: the JSON that describes a checkpoint (FORMAT.md, section 7).

Putting a manifest is the commit of a checkpoint; it is never rewritten. `dump`
and `parse` are inverse, and both run `validate`: sizes, indices and references
are checked before anything is fetched or allocated on their word.

    model    what a manifest holds        rules    what it must fulfil
    write    dump                         read     parse
    fields   strict JSON, typed values        companions   rules between arrays of a manifest
"""

from s4core.manifest.fields import SURROGATE, Fields, loads_strict
from s4core.manifest.model import (
    DELTAS,
    DERIVATIONS,
    INLINE_BYTES,
    ArrayEntry,
    Json,
    Manifest,
    Need,
    ShardEntry,
    TensorEntry,
)
from s4core.manifest.read import parse
from s4core.manifest.rules import check_id, validate
from s4core.manifest.write import dump

__all__ = [
    "DELTAS",
    "DERIVATIONS",
    "INLINE_BYTES",
    "SURROGATE",
    "ArrayEntry",
    "Fields",
    "Json",
    "Manifest",
    "Need",
    "ShardEntry",
    "TensorEntry",
    "check_id",
    "dump",
    "loads_strict",
    "parse",
    "validate",
]
