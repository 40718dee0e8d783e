"""Makes the pictures of the documentation: ``make pictures``.

The tests of the pages keep what they see in ``test-artifacts``; some of it is what the documentation shows. The drawing
of the dashboard is a page, which Chromium shows. Look at each picture before you commit it.

Threads: the main thread.
"""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from playwright.sync_api import FloatRect

from tests.browser_kit import browser

__all__ = ["PICTURES", "main", "make"]

_CHECKOUT: Final = Path(__file__).resolve().parents[1]
_SEEN: Final = _CHECKOUT / "test-artifacts"
_IMAGES: Final = _CHECKOUT / "docs" / "images"
_TESTS: Final = (
    "acceptance/test_dagster_browser.py",
    "acceptance/test_dagster_many_jobs.py",
    "acceptance/test_flights_prometheus.py",
    "acceptance/test_ui_browser.py",
    "airflow/test_airflow_pages.py",
)
_Box: TypeAlias = tuple[int, int, int, int]  # x, y, width, height
#: The pictures by name: what the tests have seen, and the part of it that is shown.
PICTURES: Final[Mapping[str, tuple[str, _Box]]] = {
    "airflow-savepoint": ("airflow/2-event-of-an-asset.png", (330, 60, 950, 460)),
    "dagster-checks": ("dagster/43-check-after.png", (240, 0, 1040, 900)),
    "dagster-many-jobs": ("dagster/61-lineage-of-fifty-jobs.png", (240, 0, 1360, 900)),
    "dagster-restore": ("dagster/52-preflight.png", (128, 159, 1024, 422)),
    "dagster-savepoint": ("dagster/33-asset-plots.png", (240, 0, 1040, 900)),
    "dagster-schedule": ("dagster/32-schedule-tick.png", (240, 0, 1040, 650)),
    "ui-checkpoint": ("ui/checkpoint-light-1280.png", (0, 0, 1280, 900)),
    "ui-forms": ("ui/forms.png", (0, 150, 1280, 490)),
    "ui-job-dark-phone": ("ui/job-dark-360.png", (0, 0, 360, 900)),
    "ui-live-values": ("ui/live-values.png", (0, 290, 1280, 330)),
}
_DRAWING: Final = "grafana/job.html"


def main() -> int:
    """Run the tests and show what they have seen; return the exit code of pytest."""
    tests = [f"tests/{name}" for name in _TESTS]
    # Also the slow ones.
    code = subprocess.run([sys.executable, "-m", "pytest", "-m", "slow or not slow", *tests], cwd=_CHECKOUT).returncode
    if code == 0:
        make()
        print(f"{len(PICTURES) + 1} pictures are in {_IMAGES}: look at them")
    return code


def make() -> None:
    """Make the pictures from what the tests have seen."""
    with browser() as started:
        for name, (seen, (x, y, width, height)) in PICTURES.items():
            window = started.new_page(viewport={"width": x + width, "height": y + height})
            window.set_content("<style>* { margin: 0; display: block; }</style><img>")
            content = base64.b64encode((_SEEN / seen).read_bytes()).decode()
            window.locator("img").evaluate(
                "(image, data) => { image.src = data; return image.decode(); }", f"data:image/png;base64,{content}"
            )
            part: FloatRect = {"x": x, "y": y, "width": width, "height": height}
            window.screenshot(path=_IMAGES / f"{name}.png", clip=part)
        window = started.new_page(viewport={"width": 1270, "height": 900})
        window.goto((_SEEN / _DRAWING).as_uri())
        window.screenshot(path=_IMAGES / "grafana-job.png", full_page=True)


if __name__ == "__main__":
    sys.exit(main())
