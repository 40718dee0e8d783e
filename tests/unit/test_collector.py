"""What the collector is told."""

from __future__ import annotations

import subprocess
import sys


def test_imports_are_forgotten_once() -> None:
    # In a process of its own: what is frozen stays so.
    program = """
import gc
from coord_control import collector
collector.forget_imports()
frozen = gc.get_freeze_count()
assert frozen > 1_000, frozen
kept = [[] for _ in range(1000)]
collector.forget_imports()
assert gc.get_freeze_count() <= frozen, "what a task has made is still looked through"
assert len(gc.get_objects()) >= 1000
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
