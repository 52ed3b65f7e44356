"""Plain tables and human numbers for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["human_bytes", "print_table", "ratio"]


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns: the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = [
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def human_bytes(count: int) -> str:
    """Return a number of bytes for people: `12.9 MB` (powers of ten)."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def ratio(raw: int, stored: int) -> str:
    """Return raw/stored for people."""
    return f"{raw / stored:.2f}x" if stored else "-"
