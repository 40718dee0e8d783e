"""``python -m coord_control.cli``: coordctl where the console script is not installed."""

from __future__ import annotations

from coord_control.cli.entry import main

main()
