"""Write the fuzzing corpus: one input for each codec, kind of plane and coding of words.

Run once, from the root of the repository: `PYTHONPATH=.:tests python fuzz/make_corpus.py`.
The form of an input is told in fuzz_codecs.c.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from plane_strategies import KINDS, REFERENCE
from rans_by_the_book import encode

CORPUS = Path(__file__).parent / "corpus"


def decoder_input(codec: int, param: int, n: int, blob: bytes) -> bytes:
    """Form the request to decode a blob."""
    return bytes([0, codec - 1, param, 0]) + n.to_bytes(4, "little") + blob


def words_input(coding: int, sub_block: int, data: bytes) -> bytes:
    """Form the request to encode words and decode them again."""
    return bytes([1, coding, sub_block // 128 - 1, 0]) + bytes(4) + data


def decoder_inputs() -> dict[str, bytes]:
    """Make a blob of every kind of plane."""
    inputs = {}
    for kind, make in sorted(KINDS.items()):
        for n, sub_block in [(300, 128), (1500, 512)]:
            encoded = REFERENCE.encode(make(np.random.default_rng(n), n), sub_block)
            name = f"decode-{encoded.codec.name.lower()}-{kind.replace(' ', '_')}-{n}"
            inputs[name] = decoder_input(encoded.codec, encoded.param, n, bytes(encoded.data))
    table = {3: 200, 9: 50, 200: 6}
    inputs["decode-rans-k8"] = decoder_input(4, 0, 400, encode([3, 9, 3, 200] * 100, 256, 8, table))
    return inputs


def words_inputs() -> dict[str, bytes]:
    """Make words of every width, layout and delta."""
    inputs = {}
    rng = np.random.default_rng(0)
    for width in range(4):
        for layout in range(3):
            for delta in range(4):
                words = rng.normal(scale=0.02, size=150).astype(np.float32).view(np.uint8)
                base = words.copy()
                base[::7] ^= 1
                data = words.tobytes() + base.tobytes()
                name = f"words-{1 << width}-layout{layout}-delta{delta}"
                inputs[name] = words_input(width | layout << 2 | delta << 4, 128, data)
    return inputs


def main() -> None:
    """Write the files."""
    CORPUS.mkdir(exist_ok=True)
    for name, data in {**decoder_inputs(), **words_inputs()}.items():
        (CORPUS / name).write_bytes(data)


if __name__ == "__main__":
    main()
