"""Stores: named bytes in a local directory, in memory, or on S3.

`Store` is the list of promises, `open_store` makes one from a URL. No optional
dependency is imported before a store needs it.
"""

from __future__ import annotations

from s4core.stores.base import TEMPORARY_PREFIX, Entry, Store, check_key
from s4core.stores.local import LocalStore
from s4core.stores.memory import MemoryStore
from s4core.stores.s3 import S3Store
from s4core.stores.s3_options import S3Options
from s4core.stores.urls import open_store

__all__ = [
    "TEMPORARY_PREFIX",
    "Entry",
    "LocalStore",
    "MemoryStore",
    "S3Options",
    "S3Store",
    "Store",
    "check_key",
    "open_store",
]
