"""The version, in one place for code; pyproject.toml must agree (a test compares)."""

__version__ = "0.1.0"
