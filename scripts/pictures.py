"""Makes the pictures of the documentation: ``make pictures``.

The tests of the pages keep what they see in ``test-artifacts``; some of it is what the documentation shows. The drawing
of the dashboard is a page, which Chromium shows. Look at each picture before you commit it.

Threads: the main thread.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.browser_kit import browser

__all__ = ["PICTURES", "main"]

_CHECKOUT: Final = Path(__file__).resolve().parents[1]
_SEEN: Final = _CHECKOUT / "test-artifacts"
_IMAGES: Final = _CHECKOUT / "docs" / "images"
_TESTS: Final = (
    "test_dagster_browser.py",
    "test_dagster_many_jobs.py",
    "test_flights_prometheus.py",
    "test_ui_browser.py",
)
#: The pictures by name, and what the tests have seen.
PICTURES: Final = {
    "dagster-checks": "dagster/43-check-after.png",
    "dagster-many-jobs": "dagster/61-lineage-of-fifty-jobs.png",
    "dagster-restore": "dagster/52-preflight.png",
    "dagster-savepoint": "dagster/14-asset-metadata.png",
    "dagster-schedule": "dagster/32-schedule-tick.png",
    "ui-checkpoint": "ui/checkpoint-light-1280.png",
    "ui-forms": "ui/forms.png",
    "ui-job-dark-phone": "ui/job-dark-360.png",
    "ui-live-values": "ui/live-values.png",
}
_DRAWING: Final = "grafana/job.html"


def main() -> int:
    """Run the tests and copy what they have seen; return the exit code of pytest."""
    tests = [f"tests/acceptance/{name}" for name in _TESTS]
    # Also the slow ones.
    code = subprocess.run([sys.executable, "-m", "pytest", "-m", "slow or not slow", *tests], cwd=_CHECKOUT).returncode
    if code == 0:
        for name, seen in PICTURES.items():
            shutil.copyfile(_SEEN / seen, _IMAGES / f"{name}.png")
        _photograph(_SEEN / _DRAWING, _IMAGES / "grafana-job.png")
        print(f"{len(PICTURES) + 1} pictures are in {_IMAGES}: look at them")
    return code


def _photograph(page: Path, picture: Path) -> None:
    with browser() as started:
        window = started.new_page(viewport={"width": 1270, "height": 900})
        window.goto(page.as_uri())
        window.screenshot(path=picture, full_page=True)


if __name__ == "__main__":
    sys.exit(main())
