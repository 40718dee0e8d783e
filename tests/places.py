"""Where the files of this repository are."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["CHECKOUT"]

CHECKOUT: Final = Path(__file__).resolve().parents[1]
