"""One request for all attempts at a step: which runs go on with which, and which commands are found again."""

# Without "from __future__ import annotations": Dagster reads the type of a step's context, and not as text.
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import dagster as dg
import pytest

from coord_control.control.client.control_client import ControlClient
from coord_control.control.client.request_once import Asked, ask_once, newest_request
from coord_control.control.commands import TriggerCheckpoint
from coord_control.dagster.runs.idempotency import attempt_key, first_run
from coord_control.protocol.failures import FailureReason
from coord_control.storage.records import CommandKind, CommandRecord, CommandState
from tests.dagster.action_kit import meanwhile
from tests.dagster_kit import (
    Plane,
    plane_in,
)
from tests.patience import eventually

RESUMED: Final = {"dagster/is_resume_retry": "true"}
ASSETS_RESUMED: Final = {"dagster/is_asset_resume_retry": "true"}
RETRIED: Final = {"dagster/retry_number": "1", "dagster/retry_strategy": "ALL_STEPS"}
ANEW: Final[dict[str, str]] = {}
BASE: Final = "dagster:run:step"


def load(step: str) -> dg.JobDefinition:
    """A job whose step fails twice, and says each time what it would ask for."""

    @dg.op(name=step, retry_policy=dg.RetryPolicy(max_retries=1))
    def op(context: dg.OpExecutionContext) -> None:
        context.log.info(f"key={attempt_key(context)}")
        context.log.info(f"first={first_run(context)}")
        raise dg.Failure("as it should")

    @dg.job(name="asking", executor_def=dg.in_process_executor)
    def job() -> None:
        op()

    return job


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as instance:
        yield instance


class Attempts:
    """The runs of one job."""

    def __init__(self, instance: dg.DagsterInstance, step: str = "step") -> None:
        self.instance = instance
        self.step = step

    def run(self, parent: str | None = None, tags: dict[str, str] | None = None) -> str:
        options = None if parent is None else dg.ReexecutionOptions(parent_run_id=parent)
        job = dg.build_reconstructable_job(__name__, load.__name__, reconstructable_kwargs={"step": self.step})
        with dg.execute_job(job, instance=self.instance, reexecution_options=options, tags=tags) as result:
            return result.run_id

    def said(self, run: str, name: str) -> list[str]:
        lines = [entry.user_message for entry in self.instance.all_logs(run)]
        return [line.removeprefix(f"{name}=") for line in lines if line.startswith(f"{name}=")]


def test_a_step_that_is_retried_asks_for_the_same(instance: dg.DagsterInstance) -> None:
    attempts = Attempts(instance)

    run = attempts.run()

    assert attempts.said(run, "key") == [f"dagster:{run}:step"] * 2
    assert attempts.said(run, "first") == [run] * 2


@pytest.mark.parametrize("tags", [RESUMED, ASSETS_RESUMED, RETRIED])
def test_a_run_that_goes_on_with_another_one_asks_for_the_same(
    instance: dg.DagsterInstance, tags: dict[str, str]
) -> None:
    attempts = Attempts(instance)

    first = attempts.run()
    second = attempts.run(first, tags)
    third = attempts.run(second, tags)

    assert attempts.said(third, "key")[0] == attempts.said(first, "key")[0]
    assert set(attempts.said(third, "first")) == {first}


@pytest.mark.parametrize("tags", [ANEW, {"dagster/is_resume_retry": "false"}])
def test_executing_all_of_a_run_anew_is_another_request(instance: dg.DagsterInstance, tags: dict[str, str]) -> None:
    attempts = Attempts(instance)

    first = attempts.run()
    anew = attempts.run(first, tags)
    resumed = attempts.run(anew, RESUMED)

    assert attempts.said(anew, "first")[0] == anew
    assert attempts.said(resumed, "first")[0] == anew


def test_a_run_that_dagster_has_forgotten_still_names_the_request(instance: dg.DagsterInstance) -> None:
    attempts = Attempts(instance)
    first = attempts.run()
    second = attempts.run(first, RESUMED)
    instance.delete_run(first)

    third = attempts.run(second, RESUMED)

    assert set(attempts.said(third, "first")) == {first}


def test_a_long_name_of_a_step_fits_into_a_key(instance: dg.DagsterInstance, plane: Plane) -> None:
    long, other = Attempts(instance, "s" * 240), Attempts(instance, "s" * 241)

    keys = {attempts.said(attempts.run(), "key")[0].rpartition(":")[2] for attempts in (long, other)}

    assert [len(key) for key in keys] == [64, 64]


# Commands.


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with plane_in(tmp_path) as plane:
        yield plane


def ask(client: ControlClient, base: str = BASE) -> Asked:
    return ask_once(client, "flights", base, TriggerCheckpoint())


def ended(client: ControlClient, asked: Asked) -> CommandRecord:
    eventually(lambda: client.command(asked.command.id).is_finished)
    return client.command(asked.command.id)


def test_nothing_is_found_before_anything_was_asked_for(plane: Plane) -> None:
    plane.driver()

    assert newest_request(plane.client(), "flights", BASE) is None


def test_what_is_under_way_or_complete_is_found_again(plane: Plane) -> None:
    driver = plane.driver(is_automatic=False)
    client = plane.client()

    first, second = ask(client), ask(client)
    eventually(lambda: client.command(first.command.id).checkpoint)
    driver.complete(1)
    assert ended(client, first).state is CommandState.COMPLETED
    third = ask(client)

    assert [each.was_known for each in (first, second, third)] == [False, True, True]
    assert {each.command.id for each in (first, second, third)} == {first.command.id}
    assert first.command.key == f"{BASE}#1"
    assert third.command.state is CommandState.COMPLETED


def test_what_came_to_nothing_is_asked_for_anew(plane: Plane) -> None:
    driver = plane.driver(is_automatic=False)
    client = plane.client()
    first = ask(client)
    eventually(lambda: client.command(first.command.id).checkpoint)
    driver.fail(1, FailureReason.EXPIRED)
    assert ended(client, first).state is CommandState.FAILED

    second = ask(client)
    client.cancel(second.command)
    assert ended(client, second).state is CommandState.CANCELLED
    third = ask(client)

    assert [each.was_known for each in (second, third)] == [False, False]
    assert [each.command.key for each in (second, third)] == [f"{BASE}#2", f"{BASE}#3"]
    newest = newest_request(client, "flights", BASE)
    assert newest is not None
    assert newest.id == third.command.id


def test_another_step_is_another_request(plane: Plane) -> None:
    plane.driver()
    client = plane.client()

    first, other = ask(client), ask(client, "dagster:run:other")

    assert not other.was_known
    assert first.command.id != other.command.id


def test_two_attempts_at_the_same_time_make_one_command(plane: Plane) -> None:
    plane.driver(is_automatic=False)
    barrier = threading.Barrier(2)
    found: list[Asked] = []

    def attempt() -> None:
        client = plane.client()
        barrier.wait()
        found.append(ask(client))

    with meanwhile(attempt):
        attempt()

    assert found[0].command.id == found[1].command.id
    assert len(plane.client().commands("flights", kind=CommandKind.TRIGGER_CHECKPOINT)) == 1
