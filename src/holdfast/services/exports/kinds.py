"""What a worker imports to run exports."""

from __future__ import annotations
