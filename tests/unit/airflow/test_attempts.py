"""The key of a task instance's requests: the same for all its attempts, and for nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from coord_control.airflow.attempts import Attempts


class Store:
    """What Airflow keeps of a task instance, over its tries."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        return self.kept.get(key)

    def set(self, key: str, value: Any) -> None:
        self.kept[key] = value


def attempt(store: Store, **names: Any) -> Attempts:
    instance = {"dag_id": "hourly", "run_id": "manual__1", "task_id": "save", "map_index": -1} | names
    return Attempts({"ti": SimpleNamespace(**instance), "task_state_store": store})


def test_all_attempts_have_one_key() -> None:
    store = Store()

    first, second = attempt(store), attempt(store)

    assert first.key() == second.key()
    assert first.key().startswith("airflow:hourly/manual__1/save/-1:")
    assert first.actor == "airflow:hourly"


def test_a_run_of_the_same_name_in_another_deployment_has_another_key() -> None:
    assert attempt(Store()).key() != attempt(Store()).key()


def test_each_mapped_task_has_a_key() -> None:
    store = Store()

    assert attempt(store, map_index=0).key() != attempt(store, map_index=1).key()


def test_long_names_fit_into_a_key() -> None:
    store = Store()
    key = attempt(store, dag_id="d" * 250, run_id="r" * 250, task_id="t" * 250).key()

    assert len(key) < 240
    assert key != attempt(store, dag_id="d" * 250, run_id="r" * 250, task_id="u" * 250).key()


def test_every_reported_result_is_remembered() -> None:
    store = Store()
    assert attempt(store).reported == frozenset()

    attempt(store).report("one")
    attempt(store).report("two")

    assert attempt(store).reported == {"one", "two"}
