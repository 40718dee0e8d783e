"""The simulated job as a whole: storage, Spark's logs, drivers, subtasks and the network between them.

This module says what can happen; :mod:`.actions` decides what does. Everything is deterministic: no clock, no thread,
no random number that does not come from the action's own generator.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from coord_control.durable.job_folder.generations import Claim
from coord_control.errors import OutputNotConsumed, StoreError, StoreUnavailable
from coord_control.ids import AttemptId, CheckpointId, Epoch, Generation, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol import messages
from coord_control.protocol.control_events import EventFeed
from coord_control.protocol.messages import Accepted, Acknowledge, Answer, AttemptEnded, Hello, Refused, Welcome
from coord_control.protocol.operator import MAX_CHANNEL_BYTES, OperatorSpec
from tests.simulation.checkpoints import Stored
from tests.simulation.claims import Claims
from tests.simulation.coordinators import SimulatedCoordinator
from tests.simulation.driver import Driver, DriverStage, Started
from tests.simulation.faults import StorageFaults
from tests.simulation.invariants import BarriersSeen
from tests.simulation.lineages import Lineage
from tests.simulation.memory_files import MemoryFiles
from tests.simulation.network import Connection, Lost, Network, Reply, Request
from tests.simulation.outside import Outside
from tests.simulation.requests import handle_requests, look_at_requests
from tests.simulation.spark import Attempt, AttemptStage, Plan, Run, RunStage, SparkLog, Task, ack_text
from tests.simulation.statistics import Statistics
from tests.simulation.values import NUMBERED, PING, Event, Violation

__all__ = ["World"]

_MAX_TASK_FAILURES = 3
#: Whose newest file names the lineage that the job runs; made when everything of it is durable.
RESTORES = "/job/restores"
_NO_LIMIT = 1 << 30
#: A few events.
_SMALL_CHANNEL_BYTES = 25


@dataclass(slots=True)
class World:
    """One simulated job.

    Args:
        shape: draws how many queries, operators and subtasks there are, and how nasty everything is.
        tell: gets the history, line by line; None: nobody listens.
    """

    shape: random.Random
    tell: Callable[[str], None] | None = None
    statistics: Statistics = field(default_factory=Statistics)
    disk: MemoryFiles = field(default_factory=MemoryFiles)
    network: Network = field(default_factory=Network)
    lineages: list[Lineage] = field(default_factory=list)  #: by number; whether one exists, the disk says
    specs: dict[QueryName, list[OperatorSpec]] = field(default_factory=dict)
    drivers: list[Driver] = field(default_factory=list)  #: oldest first; the last one is meant to own the job
    faults: dict[Generation, StorageFaults] = field(default_factory=dict)
    claims: Claims = field(init=False)
    outside: Outside = field(default_factory=Outside)
    stored: dict[CheckpointId, Stored] = field(default_factory=dict)  #: survives everything
    barriers: BarriersSeen = field(default_factory=dict)
    has_ended: bool = False  #: the epoch store was lost, and the driver said so
    is_calm: bool = False  #: no more faults: the job only has to come to rest
    is_flaky: bool = False
    is_hostile: bool = False  #: the network changes the order of messages and doubles them
    is_deaf: bool = False
    is_silent: bool = False  #: no source has rows, but for those that wake
    is_gentle: bool = False  #: fewer faults, so that a run gets far
    max_segments: int = 256
    items_limit: int = 0  #: how many items may be applied and not durable
    uids: int = 0
    tokens: int = 0
    checkpoints: int = 0
    live_values: int = 0  #: how many changes there were

    def __post_init__(self) -> None:
        self.claims = Claims(self.shape.getrandbits(32))
        self.is_flaky = self.shape.random() < 0.2
        self.is_hostile = self.shape.random() < 0.6
        self.is_gentle = self.shape.random() < 0.4
        self.is_deaf = self.shape.random() < 0.15
        self.max_segments = self.shape.choice((3, 10, 256))
        self.items_limit = self.shape.choice((2, _NO_LIMIT, _NO_LIMIT))
        channel_bytes = self.shape.choice((_SMALL_CHANNEL_BYTES, *[MAX_CHANNEL_BYTES] * 2))
        names = iter("abc")
        logs: dict[QueryName, SparkLog] = {}
        for number in range(self.shape.choice((1, 1, 2))):
            query = QueryName(f"q{number}")
            logs[query] = SparkLog(skips=self.shape.random() < 0.5)
            self.specs[query] = [
                OperatorSpec(
                    OperatorUid(next(names)),
                    self.shape.choice((1, 2, 3)),
                    observes_attempts=self.shape.random() < 0.3,
                    channel_bytes=channel_bytes,
                )
                for _ in range(self.shape.choice((1, 2, 2)) if number == 0 else 1)
            ]
        self.disk = MemoryFiles(torn_writes=True, creates_atomically=self.shape.random() < 0.5)
        for query, specs in self.specs.items():
            self.specs[query] = [replace(spec, wake=self.shape.random() < 0.4) for spec in specs]
        self.add_lineage(logs)

    def say(self, line: str) -> None:
        if self.tell is not None:
            self.tell(line)

    @property
    def driver(self) -> Driver | None:
        """The driver that owns the job, None between two of them."""
        newest = self.drivers[-1] if self.drivers else None
        return newest if newest is not None and newest.stage is DriverStage.ALIVE else None

    @property
    def alive(self) -> list[Driver]:
        """The owner, and older drivers that have not noticed yet."""
        return [driver for driver in self.drivers if driver.stage is DriverStage.ALIVE]

    # Lineages.

    @property
    def lineage(self) -> Lineage:
        """The newest lineage that exists: a restore that did not come to its end has made none."""
        restores = self.disk.list(RESTORES)
        return self.lineages[int(restores[-1]) if restores else 0]

    def add_lineage(self, logs: dict[QueryName, SparkLog], restored: Stored | None = None, job: str = "job") -> Lineage:
        """A lineage that nobody runs before :data:`RESTORES` names it."""
        lineage = Lineage(
            number=len(self.lineages),
            disk=self.disk,
            logs=logs,
            barriers=self.barriers,
            statistics=self.statistics,
            newest_generation=self._newest_generation,
            max_segments=self.max_segments,
            is_deaf=self.is_deaf,
            job=job,
            restored=restored,
        )
        self.lineages.append(lineage)
        return lineage

    def _newest_generation(self) -> Generation:
        return max(self.faults, default=Generation(0))

    # Drivers.

    def start_driver(
        self, dies_at: int | None = None, meets_at: int | None = None, meet: Callable[[], None] | None = None
    ) -> None:
        """A new driver claims the job as in :meth:`claim`; older ones that are alive do not know yet."""
        files, claim = self.claim(dies_at, meets_at, meet)
        self.run_driver(files, claim, self.lineage)

    def claim(
        self, dies_at: int | None, meets_at: int | None = None, meet: Callable[[], None] | None = None
    ) -> tuple[MemoryFiles, Claim]:
        """A new generation, and the disk as its driver sees it.

        Args:
            dies_at: the durable step that the driver does not survive, perhaps of its claim.
            meets_at: the step of its claim at which another process claims the job as well.
            meet: lets that one do so; None: another driver.
        """
        faults = StorageFaults(self.statistics, dies_at, meets_at=meets_at, meet=meet or self._start_rival)
        files = self.disk.seen_by(faults)
        claim = self.claims.claim(files)
        faults.meets_at = None
        self.faults[claim.generation] = faults
        return files, claim

    def _start_rival(self) -> None:
        self.statistics.rivals += 1
        self.start_driver()

    def run_command(
        self, dead: Generation, meets_at: int | None = None, meet: Callable[[], None] | None = None
    ) -> None:
        """A command claims a job of which no driver is alive, unless one has come just now.

        Args:
            dead: as for :meth:`.Claims.command`.
            meets_at, meet: as for :meth:`claim`.

        Raises:
            Violation: it has fenced a driver that came at the same moment.
        """
        faults = StorageFaults(self.statistics, meets_at=meets_at, meet=meet)
        claim = self.claims.command(self.disk.seen_by(faults), dead)
        if self.driver is not None and not self.driver.claim.is_current():
            raise Violation("fencing: a command has fenced a driver that it should have left alone")
        if claim is None:
            self.statistics.commands_withdrawn += 1
        else:
            claim.release()

    def run_driver(self, files: MemoryFiles, claim: Claim, lineage: Lineage) -> None:
        """The driver of a generation begins its work."""
        driver = Driver(
            claim=claim,
            query_ids={query: f"id-{query}" for query in self.specs},
            specs=self.specs,
            stores={query: lineage.store(files, query, claim.generation) for query in self.specs},
            lineage=lineage,
            answer=self.answer,
            say=self.say,
            now=self.claims.clocks[claim.generation].seconds(self.claims.passed),
            live_log=lineage.live_log(files, claim.generation),
        )
        for coordinator in driver.coordinators.values():
            coordinator.feed = EventFeed(_NO_LIMIT if self.is_calm else self.items_limit)
        if self.drivers and (previous := self.drivers[-1]).lineage is lineage:
            ended = previous.finished.items()  # what its plan is to blame for, it would end with again
            driver.finished = {query: error for query, error in ended if isinstance(error, OutputNotConsumed)}
        self.drivers.append(driver)
        self.drivers.sort(key=lambda each: each.claim.generation)
        self.say(f"{driver} claims the job")

    def start_query(self, driver: Driver, query: QueryName) -> None:
        """Recover and start; a damaged store must be an error here."""
        lineage, generation = driver.lineage, driver.claim.generation
        try:
            if lineage.must_be_seeded(query):
                files = self.disk.seen_by(self.faults[generation])
                lineage.seed(files, query, generation)
                driver.stores[query] = lineage.store(files, query, generation)
                lineage.undamaged.pop(query, None)  # nothing of it was read
            view = driver.start_run(query)
        except StoreUnavailable:
            self.say(f"{driver} cannot read the storage now")
            return
        except StoreError as error:
            if query not in lineage.undamaged:
                raise Violation(f"I7: an undamaged store is refused: {error}") from error
            self.say(f"{driver} stops with a clear error: {error}")
            self.has_ended = True
            return
        finally:
            # Its own later writes are its own affair: only what an older driver answers is held against what was read.
            lineage.forget_view(query)
        lineage.was_read(query, generation, view)
        if (undamaged := lineage.undamaged.pop(query, None)) is not None:
            reference = lineage.store(undamaged, query, generation)
            reference.committed(driver.logs[query].committed)
            if reference.open() != list(view.records):
                raise Violation(f"I7: {driver} has started query {query} from a damaged store without an error")
        log = driver.logs[query]
        self.say(
            f"{driver} starts query {query}: epoch {log.committed} is committed, epoch {log.planned} planned, "
            f"{len(view.records)} records"
        )

    def kill(self, driver: Driver, how: str) -> None:
        """A driver dies; its subtasks may linger."""
        self.say(f"{driver} dies {how}")
        self.statistics.crashes += 1
        driver.stage = DriverStage.DEAD
        self.retire(driver)

    def retire(self, driver: Driver) -> None:
        """Spark ends with its driver."""
        for run in driver.runs.values():
            run.stage = RunStage.OVER
            self.abandon(run)
        self.count(driver)

    def count(self, driver: Driver) -> None:
        """Add up what a driver has done, once, when it has ended."""
        for totals in driver.core.totals().values():
            self.statistics.epochs += totals.epochs
            self.statistics.events_down += totals.events_down
            self.statistics.events_up += totals.events_up
            self.statistics.skipped_begins += totals.epochs - min(totals.epochs, totals.begins_recorded)
            self.statistics.skipped_acks += totals.acks - totals.acks_recorded

    def abandon(self, run: Run) -> None:
        for task in run.tasks:
            for attempt in task.attempts:
                attempt.is_abandoned = True

    def crashed(self, where: str) -> None:
        """A driver has died at a point that was armed before."""
        for driver in self.alive:
            faults = self.faults[driver.core.generation]
            if driver.is_dying or faults.died:
                self.kill(driver, where)

    def calm_down(self) -> None:
        """No more faults; drivers that do not own the job are gone, and so is what abandoned attempts would still
        say."""
        self.is_calm, self.is_hostile = True, False
        for driver in self.drivers[:-1]:
            if driver.stage is DriverStage.ALIVE:
                self.kill(driver, "for good")
        for faults in self.faults.values():
            faults.dies_at = faults.fails_at = None
        for driver in self.alive:
            driver.dies_between = False
            for coordinator in driver.coordinators.values():
                coordinator.feed.limit = _NO_LIMIT

    # Spark.

    def plan(self, run: Run, plan: Plan | None) -> None:
        """Run the next epoch.

        Args:
            plan: fixed for it; None: an earlier run has planned it.
        """
        log = run.log
        if plan is not None:
            log.planned = Epoch(log.committed + 1)
            log.plans[log.planned] = plan
            self.lineage.live.plan(run.query, log.planned, run.id)
        run.begin()
        plan = run.plan
        rows = ", ".join(f"{uid}{list(subtasks)}" for uid, subtasks in plan.rows.items()) or "nothing"
        self.say(
            f"Spark runs epoch {run.epoch} of {run.query} with rows for {rows}{', cut off' if plan.is_cut else ''}"
        )

    def draw_plan(self, query: QueryName, rng: random.Random) -> Plan:
        salt = rng.randrange(1 << 20)
        if self.is_calm:
            everything = {spec.uid: tuple(map(SubtaskIndex, range(spec.parallelism))) for spec in self.specs[query]}
            return Plan(everything, is_idle=True, salt=salt)
        if rng.random() < 0.08:
            return Plan({}, salt=salt)
        rows = {
            spec.uid: tuple(SubtaskIndex(s) for s in range(spec.parallelism) if rng.random() < 0.7)
            for spec in self.specs[query]
        }
        rows = {uid: subtasks for uid, subtasks in rows.items() if subtasks}
        is_cut = rng.random() < 0.01
        return Plan(rows, 2 if rng.random() < 0.15 else 1, is_cut, rng.random() < 0.3, salt)

    def launch(self, driver: Driver, run: Run, task: Task) -> None:
        """Spark starts an attempt, and its first row arrives."""
        assert run.epoch is not None
        driver.task_attempts += 1
        self.tokens += 1
        identity = AttemptId(
            driver.core.generation,
            run.id,
            driver.query_ids[run.query],
            task.operator,
            task.subtask,
            run.epoch,
            driver.task_attempts,
            task.action,
            len(task.attempts),
        )
        attempt = Attempt(identity, f"connection {self.tokens}")
        task.attempts.append(attempt)
        connection = self.network.connect(attempt, task, run)
        self.say(f"attempt {identity} says hello")
        self.network.send(Request(connection, Hello(identity)))

    def finish_function(self, connection: Connection) -> None:
        """The user's function has read its input to the end."""
        attempt = connection.attempt
        connection.ack = attempt.compute(connection.plan, is_flaky=self.is_flaky)
        attempt.stage = AttemptStage.ACKING
        self.say(f"attempt {attempt.id} acknowledges: {ack_text(connection.ack)}")
        self.network.send(Request(connection, connection.ack))

    def fail_attempt(self, connection: Connection, *, reports: bool) -> None:
        """An attempt ends badly; it says so, or its connection just breaks."""
        attempt = connection.attempt
        attempt.stage = AttemptStage.DEAD
        self.statistics.failovers += 1
        self.say(f"attempt {attempt.id} {'fails' if reports else 'loses its connection'}")
        if reports:
            self.network.send(Request(connection, AttemptEnded(attempt.id, "simulated")))
        else:
            self.network.send(Lost(connection))
        self.count_failure(connection)

    def count_failure(self, connection: Connection) -> None:
        task, run = connection.task, connection.run
        if run.stage is RunStage.RUNNING and not connection.attempt.is_abandoned and not task.is_finished:
            task.failures += 1
            if task.failures > _MAX_TASK_FAILURES:
                self.fail_batch(run)

    def fail_batch(self, run: Run) -> None:
        """Spark gives the batch up: the query's run ends."""
        self.say(f"Spark gives up epoch {run.epoch} of {run.query}")
        run.stage = RunStage.STOPPED
        self.abandon(run)

    def commit(self, driver: Driver, run: Run) -> None:
        plan = run.plan
        epoch = run.commit()
        self.abandon(run)
        deepest = driver.lineage.deepest
        deepest[run.query] = max(epoch, deepest.get(run.query, epoch))
        self.say(f"Spark commits epoch {epoch} of {run.query}")
        if plan.is_cut and plan.rows:
            self.statistics.outputs_cut += 1
        self.statistics.epochs_without_rows += not plan.rows
        run.tasks = []

    def set_back(self, query: QueryName) -> bool:
        """The power fails: Spark's newest file was not on the disk yet."""
        lineage = self.lineage
        log = lineage.logs[query]
        if not lineage.set_back(query):
            return False
        lineage.invariants.rolled_back([spec.uid for spec in self.specs[query]], log.planned)
        self.say(f"the power fails: Spark's log of {query} is back at commit {log.committed}, plan {log.planned}")
        return True

    # Messages.

    def deliver(self, message: Request | Lost | Reply) -> None:
        """A message arrives at whoever is there now."""
        if isinstance(message, Reply):
            self._reply_arrives(message)
            return
        home = message.connection.attempt.id.generation
        driver = next((other for other in self.alive if other.core.generation == home), self.driver)
        if driver is None:
            return
        match message:
            case Lost(connection):
                driver.disconnected(connection.token)
            case Request(connection, AttemptEnded() as ended):
                driver.attempt_ended(ended)
            case Request(connection, Hello() as hello):
                self._must_refuse(driver, connection, lambda: driver.hello(hello.attempt, connection.token))
            case Request(connection, Acknowledge() as ack):
                self._must_refuse(driver, connection, lambda: driver.acknowledge(ack, connection.token))

    def _must_refuse(self, driver: Driver, connection: Connection, call: Callable[[], None]) -> None:
        attempt = connection.attempt.id
        is_stale = driver.is_stale(attempt, connection.run)
        answers = len(driver.core._batch.answers)
        call()
        given = driver.core._batch.answers[answers:]
        if is_stale and not any(each.token == connection.token and isinstance(each.answer, Refused) for each in given):
            raise Violation(
                f"fencing: {driver} does not refuse {attempt} of {attempt.run}, generation {attempt.generation}"
            )

    def answer(self, driver: Driver, token: str, answer: Answer) -> None:
        """A driver sends an answer: from here on it is visible outside."""
        connection = self.network.connections[token]
        attempt, query = connection.attempt, connection.run.query
        match answer:
            case Welcome():
                operator = driver.operator(attempt.id.operator)
                driver.invariants.welcomed(query, attempt, answer, operator.epoch if operator is not None else None)
            case Accepted():
                assert connection.ack is not None
                assert attempt.welcome is not None
                driver.invariants.accepted(query, connection.ack, attempt.welcome)
            case Refused():
                self.statistics.refused += 1
        if not isinstance(answer, Refused):
            self.claims.answered(driver.core.generation)
        self.network.send(Reply(connection, answer, driver.core.generation))

    def _reply_arrives(self, reply: Reply) -> None:
        connection, attempt = reply.connection, reply.connection.attempt
        match reply.content:
            case Welcome() as welcome if attempt.stage is AttemptStage.GREETING:
                attempt.stage, attempt.welcome = AttemptStage.RUNNING, welcome
            case Accepted() if attempt.stage is AttemptStage.ACKING:
                attempt.stage = AttemptStage.DONE
                if not attempt.is_abandoned and connection.run.stage is RunStage.RUNNING:
                    connection.task.is_finished = True
            case Refused(reason) if attempt.is_alive:
                self.say(f"attempt {attempt.id} is refused: {reason}")
                attempt.stage = AttemptStage.DEAD
                self.count_failure(connection)
            case _:
                pass  # a duplicate

    # Coordinators.

    def send_event(self, driver: Driver, coordinator: SimulatedCoordinator, subtask: int, *, is_ping: bool) -> None:
        """``context.send``."""
        self.uids += 1
        if is_ping:
            event = Event(PING, 0, self.uids)
        else:
            event = Event(NUMBERED, coordinator.state.sent[subtask], self.uids)
            coordinator.state.sent[subtask] += 1
        self.say(f"the coordinator of {coordinator.uid} ({driver}) sends {event} to subtask {subtask}")
        driver.send(coordinator, subtask, event)

    def complete_snapshot(self, driver: Driver, coordinator: SimulatedCoordinator) -> None:
        barrier = coordinator.owed.pop(0)
        self.say(
            f"the coordinator of {coordinator.uid} ({driver}) gives its state {coordinator.state.to_bytes().decode()}"
        )
        driver.complete(coordinator, barrier)

    def call_coordinator(self, driver: Driver, rng: random.Random) -> None:
        """Run the next call of the coordinators' thread, and what the user's code does in it."""
        called = driver.call_next()
        if called is None:
            return
        coordinator, notice = called
        match notice:
            case messages.ResetCoordinator():
                if driver.claim.is_current():
                    driver.lineage.check_durable(coordinator.uid, notice.applied)
                self._feed_opened(driver, coordinator)
            case Started():
                self._feed_opened(driver, coordinator)
                look_at_requests(driver, coordinator)
            case messages.HandleRequests():
                handle_requests(self, coordinator, notice)
            case messages.AskSnapshot() if coordinator.owed:
                self._burst(driver, coordinator, rng)
                if self.is_calm or rng.random() < 0.7:
                    self.complete_snapshot(driver, coordinator)
                    self._burst(driver, coordinator, rng)
            case messages.DeliverEvents():
                self.say(f"the coordinator of {coordinator.uid} ({driver}) gets events of subtask {notice.subtask}")
                self._burst(driver, coordinator, rng)

    def _feed_opened(self, driver: Driver, coordinator: SimulatedCoordinator) -> None:
        # Once per driver: after a restart in place the feed's own memory must do.
        if not coordinator.was_fed:
            coordinator.was_fed = True
            self.feed_again(driver, coordinator)

    def feed_again(self, driver: Driver, coordinator: SimulatedCoordinator) -> None:
        """Whoever keeps the items gives all of them that may be new."""
        for item in self.outside.of(driver.lineage.job, coordinator.uid):
            if item.number > (coordinator.feed.applied or 0) and self.outside.outcomes.get(item) is not False:
                coordinator.feed.accept(item.number, item, 1)

    def _burst(self, driver: Driver, coordinator: SimulatedCoordinator, rng: random.Random) -> None:
        if not self.is_calm and rng.random() < 0.3:
            for _ in range(rng.randint(1, 3)):
                self.send_event(driver, coordinator, rng.randrange(coordinator.parallelism), is_ping=rng.random() < 0.2)
