"""Helpers of several tests."""

from typing import Any

SMALL: Any = {"pool_bytes": 4 << 20, "segment_bytes": 1 << 20}
"""Options with which opening takes milliseconds."""
