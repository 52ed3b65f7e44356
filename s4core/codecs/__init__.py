"""Codecs: one plane of one chunk to a blob, and back (FORMAT.md, sections 2 to 4).

Map of the package:

- `ids`: the codecs' numbers, and `EncodedPlane`
- `coding`: `encode_plane`, `decode_plane`, `encode_words`, `decode_words`, whoever does the work
- `word_coding`: width, layout and delta of words, checked
- `native`: the C extension `_native`, when one was built from `csrc/`
- `reference`, `choice`, `rans_reference`, `rans_blob`, `bitpack_reference`, `words_reference`:
  numpy, the oracle of the native and of the CUDA code, and what serves without an extension
- `side`, `context_reference`, `context_blob`, `grid_reference`: `rans.ctx` and `rans.grid`, which
  know more than the plane
- `zstd`: the one file that imports zstandard
- `faults`: what can be wrong with a blob, and the sentence that says so
"""

from __future__ import annotations

from s4core.codecs.coding import decode_plane, decode_words, encode_plane, encode_words
from s4core.codecs.ids import CodecId, EncodedPlane
from s4core.codecs.side import NO_SIDE, Side, context_bytes

__all__ = [
    "NO_SIDE",
    "CodecId",
    "EncodedPlane",
    "Side",
    "context_bytes",
    "decode_plane",
    "decode_words",
    "encode_plane",
    "encode_words",
]
