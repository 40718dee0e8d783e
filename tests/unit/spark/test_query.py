"""One query without Spark: every way in which a run ends, whatever is wanted meanwhile, and the bugs in between."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest

from coord_control.errors import DeclarationError, QueryFailed
from coord_control.ids import Epoch, QueryName
from coord_control.protocol.query_state import QueryState, RunEnd, Wish, WishInput
from coord_control.spark.queries.batch_counts import BatchCounts
from coord_control.spark.queries.query import ManagedQuery
from coord_control.spark.queries.query_spec import QueryDefinition
from coord_control.spark.queries.restart_policy import RestartPolicy
from tests.mutations.mutation import Mutation, is_noticed

INPUTS: Final = {Wish.PAUSE: WishInput.PAUSE, Wish.STOP: WishInput.STOP}


class Owner:
    """The job: keeps the states that it hears of, and says what is wanted when the query has paused."""

    def __init__(self, in_pause: WishInput) -> None:
        self.in_pause = in_pause
        self.states: list[str] = []
        self.query: ManagedQuery | None = None

    def verify(self) -> None: ...

    def verify_recent(self) -> None: ...

    def verify_alone(self) -> None: ...

    def start_coordinators(self, operators: object) -> None: ...

    def drain_coordinators(self, operators: object) -> None: ...

    def query_changed(self) -> None:
        assert self.query is not None
        self.states.append(self.query.state.value)
        if self.query.state is QueryState.PAUSED:
            self.query._wants(self.in_pause)


class Query(ManagedQuery):
    """One whose runs of Spark end as the test says, in turn; what it wants meanwhile comes before each end.

    Attributes:
        runs: how Spark was started: ``recovers``, or ``runs again``, on the same operators.
    """

    def __init__(
        self, *ends: tuple[Wish | None, RunEnd], max_restarts: int = 3, in_pause: WishInput = WishInput.RESUME
    ) -> None:
        nothing: Any = SimpleNamespace(query_failed=lambda *_: None)
        policy = RestartPolicy(initial_seconds=0.0, max_restarts=max_restarts)
        owner = Owner(in_pause)
        spec = QueryDefinition(QueryName("q"), nothing, nothing, (), None, policy)
        super().__init__(spec, owner, files=nothing, runtime=nothing, recoveries=nothing)
        owner.query = self
        self.heard = owner.states
        self._ends = list(ends)
        self.runs: list[str] = []
        self._query = SimpleNamespace()  # type: ignore[assignment]

    def _await_end(self) -> BaseException | None:
        wish, end = self._ends.pop(0)
        if wish is not None:
            self._wants(INPUTS[wish])
        self._ending = self._query if end is RunEnd.REQUESTED else None
        errors = {RunEnd.FAILED: OSError("for now"), RunEnd.FATAL: DeclarationError("for good")}
        return errors.get(end)

    def _settle_run(self, failure: BaseException | None = None) -> None: ...

    def _finish_run(self, failure: BaseException | None = None) -> None:
        self._failure = None

    def _start_spark(self) -> Any:
        self.runs.append("runs again")
        return SimpleNamespace()

    def _begin(self) -> None:
        self.runs.append("recovers")
        self._query = SimpleNamespace()  # type: ignore[assignment]

    def _stop_spark_soon(self) -> None: ...


def run(*ends: tuple[Wish | None, RunEnd], **options: Any) -> Query:
    query = Query(*ends, **options)
    query._watch()
    return query


def each_end_leads_where_the_table_says() -> None:
    expected = {
        (None, RunEnd.FINISHED): (QueryState.FINISHED, []),
        (None, RunEnd.REQUESTED): (QueryState.FINISHED, ["runs again"]),
        (None, RunEnd.FAILED): (QueryState.FINISHED, ["recovers"]),
        (None, RunEnd.FATAL): (QueryState.FAILED, []),
        (Wish.STOP, RunEnd.FINISHED): (QueryState.STOPPED, []),
        (Wish.STOP, RunEnd.REQUESTED): (QueryState.STOPPED, []),
        (Wish.STOP, RunEnd.FAILED): (QueryState.STOPPED, []),
        (Wish.STOP, RunEnd.FATAL): (QueryState.FAILED, []),
        (Wish.PAUSE, RunEnd.REQUESTED): (QueryState.FINISHED, ["runs again"]),
        (Wish.PAUSE, RunEnd.FINISHED): (QueryState.FINISHED, []),
        (Wish.PAUSE, RunEnd.FAILED): (QueryState.FINISHED, ["recovers"]),
        (Wish.PAUSE, RunEnd.FATAL): (QueryState.FAILED, []),
    }
    for (wish, end), found in expected.items():
        query = run((wish, end), (None, RunEnd.FINISHED))
        assert (query.state, query.runs) == found, (wish, end)


def a_query_that_fails_again_and_again_fails_for_good() -> None:
    query = run(*[(None, RunEnd.FAILED)] * 4, max_restarts=3)
    assert (query.state, query.restarts, query.runs) == (QueryState.FAILED, 3, ["recovers"] * 3)
    assert isinstance(query.error, QueryFailed)


def one_that_is_stopped_on_its_last_try_has_not_failed() -> None:
    query = run((None, RunEnd.FAILED), (Wish.STOP, RunEnd.FAILED), max_restarts=1)
    assert (query.state, query.error) == (QueryState.STOPPED, None)


def a_query_that_is_stopped_in_its_pause_does_not_run_again() -> None:
    query = run((Wish.PAUSE, RunEnd.REQUESTED), (None, RunEnd.FINISHED), in_pause=WishInput.STOP)
    assert (query.state, query.runs, query.heard) == (QueryState.STOPPED, [], ["paused", "stopped"])


class Hanging(Query):
    """Its storage hangs: the first calls to the core's loop are given up."""

    hangs = 4

    def __init__(self, *ends: tuple[Wish | None, RunEnd]) -> None:
        super().__init__(*ends)
        self._runtime = SimpleNamespace(call=self._call)  # type: ignore[assignment]

    def _call(self, call: object) -> None:
        if self.hangs:
            self.hangs -= 1
            raise TimeoutError

    def _finish_run(self, failure: BaseException | None = None) -> None:
        ManagedQuery._finish_run(self, failure)
        self._failure = None

    def _begin(self) -> None:
        if self.hangs:
            ManagedQuery._begin(self)
        super()._begin()

    def _explained(self, error: Exception) -> Exception:
        return error  # Spark is there


def one_whose_storage_hangs_is_started_again_until_it_works() -> None:
    query = Hanging((None, RunEnd.FAILED), (None, RunEnd.FINISHED))
    query._watch()
    assert (query.state, query.restarts, query.runs) == (QueryState.FINISHED, 3, ["recovers"])


RULES: Final = (
    a_query_that_is_stopped_in_its_pause_does_not_run_again,
    each_end_leads_where_the_table_says,
    a_query_that_fails_again_and_again_fails_for_good,
    one_that_is_stopped_on_its_last_try_has_not_failed,
    one_whose_storage_hangs_is_started_again_until_it_works,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_query(rule: Callable[[], None]) -> None:
    rule()


@pytest.mark.parametrize(("wish", "input_"), list(itertools.product(Wish, WishInput)))
def test_what_is_wanted_wakes_the_thread_that_waits(wish: Wish, input_: WishInput) -> None:
    query = Query()
    query._wish = wish
    query._wants(input_)
    assert query._must_end() is (query._wish is Wish.STOP)


def test_each_change_of_state_is_reported() -> None:
    assert run((None, RunEnd.FAILED), (None, RunEnd.FINISHED)).heard == ["restarting", "running", "finished"]


def test_a_batch_counts_once_however_often_spark_reports_it() -> None:
    counts = BatchCounts()
    for epoch, rows in ((0, 5), (1, 3), (1, 0), (1, 0), (2, 2)):
        counts.hear(Epoch(epoch), {"numInputRows": rows, "batchDuration": 500})
    assert (counts.batches, counts.rows, counts.seconds) == (3, 10, 1.5)
    assert counts.progress["numInputRows"] == 2


def test_an_idle_query_reads_nothing_per_second_and_counts_no_batch() -> None:
    counts = BatchCounts()
    counts.hear(Epoch(0), {"numInputRows": 5, "inputRowsPerSecond": 2.5, "processedRowsPerSecond": 9.0})
    counts.idle()
    assert (counts.progress["inputRowsPerSecond"], counts.progress["processedRowsPerSecond"]) == (0.0, 0.0)
    assert (counts.progress["numInputRows"], counts.batches, counts.rows) == (5, 1, 5)


@pytest.mark.parametrize(
    ("batches", "total"),
    [
        ([], 0),
        ([(0, 5), (1, 0), (1, 7), (2, 3)], 8),
        ([(0, 5), (1, -1), (2, 4)], None),
        ([(0, None)], None),
    ],
)
def test_rows_of_the_sink_are_known_only_if_it_reports_them_of_every_batch(
    batches: list[tuple[int, int | None]], total: int | None
) -> None:
    counts = BatchCounts()
    for epoch, rows in batches:
        counts.hear(Epoch(epoch), {} if rows is None else {"sink": {"numOutputRows": rows}})
    assert counts.output_rows == total


BUGS: Final = (
    Mutation("restart what shall stop", ManagedQuery._conclude, "FOLLOWS[self._wish, end]", "FOLLOWS[Wish.RUN, end]"),
    Mutation("start what fails for good again", ManagedQuery._conclude, "if may_retry(error) else", "if True else"),
    Mutation(
        "start what fails again and again for ever",
        ManagedQuery._conclude,
        "self._fruitless >= self._policy.max_restarts",
        "False",
    ),
    Mutation("take every end for one on request", ManagedQuery._run_until_end, "self._ending is self._query", "True"),
    Mutation(
        "finish when the end of the epoch was asked for",
        ManagedQuery._run_until_end,
        "self._ending is self._query",
        "False",
    ),
    Mutation(
        "run again when a stop has ended the pause",
        ManagedQuery._has_gone_on,
        "if self._must_end():\n        return False\n    try:",
        "try:",
    ),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_these_rules_is_noticed(bug: Mutation) -> None:
    assert is_noticed(bug, RULES)
