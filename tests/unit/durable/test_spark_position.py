"""Where Spark stands, read while it runs on."""

from __future__ import annotations

from pathlib import Path

from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.lineage import spark_position


def _log(checkpoint: Path, kind: str, *names: str) -> None:
    (checkpoint / kind).mkdir(exist_ok=True)
    for name in names:
        (checkpoint / kind / name).touch()


class BusySpark(LocalFiles):
    """Between two looks at the directory Spark commits its epoch and plans the next one."""

    def list(self, path: str) -> list[str]:
        names = super().list(path)
        checkpoint = Path(path).parent
        planned = max(int(name) for name in super().list(f"{checkpoint}/offsets"))
        _log(checkpoint, "commits", str(planned))
        _log(checkpoint, "offsets", str(planned + 1))
        return names


def test_a_query_that_goes_on_meanwhile_makes_no_gap(tmp_path: Path) -> None:
    _log(tmp_path, "offsets", "0", "1")
    _log(tmp_path, "commits", "0")

    committed, planned = spark_position(BusySpark(), str(tmp_path))

    assert committed in (0, 1)
    assert planned in (committed, committed + 1)
