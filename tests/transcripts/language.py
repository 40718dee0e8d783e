"""The words of a transcript: commands to a job's core or to one channel, and what comes out as lines.

A job (``job p=2 [watched] [ops=a,b]``) lives on the stage of tests/core_kit.py. Where it has several operators,
commands name theirs with ``op=``, and lines that belong to one end with its name. Its commands:

- ``start``, ``end-run``, ``new-driver``: a run of the query, its end, and a driver that died
- ``hello SUBTASK e=EPOCH t=TASK``, ``ack SUBTASK e=EPOCH t=TASK [state=S] [out=x,y]``,
  ``ended SUBTASK e=EPOCH t=TASK``, ``disconnect t=TASK``; an attempt of another time says ``run=`` or ``generation=``
- ``send SUBTASK EVENT``, ``snapshot STATE``, ``coordinator-fails``: what the coordinator does
- ``checkpoint C``, ``abort C``, ``stored C``, ``snapshot-fails``: a triggered checkpoint and how it ends
- ``wait SECONDS``: nothing happens for so long
- ``spark-plans EPOCH``, ``spark-commits EPOCH``: Spark's files, which the driver has not seen; ``commit EPOCH``: it has
- ``crash=before-persist|after-persist|after-answers`` after ``snapshot`` or ``ack``: the driver dies there
- ``log``, ``mailboxes``: what is durable, what waits

A channel (``channel p=1``) is one coordinator's gateways: ``trigger B``, ``answer B``, ``abort B``, ``open SUBTASK B``,
``send SUBTASK EVENT``, ``freeze``. A barrier is written ``generation.number`` in a job, and as its number in a channel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, assert_never

from coord_control.errors import CoordControlError, CoordinatorFailed
from coord_control.ids import NO_CHECKPOINT, AttemptId, BarrierId, Epoch, Generation, RunId, SubtaskIndex
from coord_control.protocol import messages
from coord_control.protocol.channel import OperatorChannel
from coord_control.protocol.cut import OperatorCut
from coord_control.protocol.messages import Answer, Batch, Notice
from coord_control.protocol.records import Ack, Begin, EventBatch, LiveChanged, LiveFrozen, Record, RunStarted
from tests.core_kit import OP, Crash, Stage, event, names, spec


class Interpreter(Protocol):
    def run(self, words: list[str]) -> list[str]:
        """Execute one command; returns what it printed."""


def interpreter(words: list[str]) -> Interpreter:
    """The interpreter that a transcript's first command names."""
    options = _options(words)
    parallelism = int(options["p"])
    if words[0] == "job":
        operators = options.get("ops", OP).split(",")
        return JobInterpreter(
            Stage(specs=[spec(uid, parallelism, observes_attempts="watched" in words) for uid in operators])
        )
    assert words[0] == "channel", f"a transcript begins with 'job' or 'channel', not {words[0]!r}"
    return ChannelInterpreter(OperatorChannel(OP, parallelism, incarnation=1))


class JobInterpreter:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def run(self, words: list[str]) -> list[str]:
        name, options = words[0], _options(words)
        plain = [word for word in words[1:] if "=" not in word]
        crash = Crash(options["crash"]) if "crash" in options else None
        operator = options.get("op", OP)
        commands: dict[str, Callable[[], list[str]]] = {
            "start": lambda: self._lines(self.stage.start()),
            "end-run": lambda: self._lines(self.stage.end_run()),
            "new-driver": self._new_driver,
            "hello": lambda: self._lines(self._hello(int(plain[0]), options)),
            "ack": lambda: self._lines(self._ack(int(plain[0]), options, crash), crash),
            "ended": lambda: self._lines(
                self.stage.attempt_ended(int(plain[0]), int(options["e"]), int(options["t"]), operator)
            ),
            "disconnect": lambda: self._lines(self.stage.disconnect(int(options["t"]))),
            "send": lambda: self._lines(self.stage.send(int(plain[0]), plain[1], operator)),
            "snapshot": lambda: self._lines(self.stage.snapshot(plain[0].encode(), operator, crash=crash), crash),
            "coordinator-fails": lambda: self._lines(self._coordinator_fails()),
            "spark-plans": lambda: self._spark_plans(int(plain[0])),
            "spark-commits": lambda: self._spark_commits(int(plain[0])),
            "commit": lambda: self._lines(self.stage.commit(int(plain[0]))),
            "checkpoint": lambda: self._lines(self.stage.trigger_checkpoint(int(plain[0]))),
            "abort": lambda: self._lines(self.stage.abort_checkpoint(int(plain[0]))),
            "stored": lambda: self._lines(self.stage.checkpoint_stored(int(plain[0]))),
            "snapshot-fails": lambda: self._lines(self.stage.snapshot_fails(operator)),
            "wait": lambda: self._lines(self._wait(float(plain[0]))),
            "log": lambda: [self._record(record) for record in self.stage.log] or ["(empty)"],
            "mailboxes": self._mailboxes,
        }
        return commands[name]()

    def _hello(self, subtask: int, options: Mapping[str, str]) -> Batch:
        stale = self._stale(subtask, options)
        operator = options.get("op", OP)
        return self.stage.hello(subtask, int(options["e"]), int(options["t"]), operator, stale=stale)

    def _ended(self, subtask: int, options: Mapping[str, str]) -> Batch:
        return self.stage.attempt_ended(subtask, int(options["e"]), int(options["t"]), options.get("op", OP))

    def _ack(self, subtask: int, options: Mapping[str, str], crash: Crash | None) -> Batch:
        state = options["state"].encode() if "state" in options else None
        outbox = options.get("out", "").replace(",", " ")
        epoch, task = int(options["e"]), int(options["t"])
        operator, stale = options.get("op", OP), self._stale(subtask, options)
        return self.stage.ack(subtask, epoch, task, state, outbox, operator, crash=crash, stale=stale)

    def _stale(self, subtask: int, options: Mapping[str, str]) -> AttemptId | None:
        if "run" not in options and "generation" not in options:
            return None
        now = self.stage.attempt(subtask, int(options["e"]), int(options["t"]))
        return now._replace(
            run=RunId(options.get("run", now.run)),
            generation=Generation(int(options.get("generation", now.generation))),
        )

    def _new_driver(self) -> list[str]:
        self.stage.new_driver()
        return [f"generation {self.stage.generation}"]

    def _coordinator_fails(self) -> Batch:
        error = CoordinatorFailed(OP, "handle_event_from_operator", "boom")
        self.stage.core.coordinator_failed(OP, self.stage.incarnation(), error)
        return self.stage.execute()

    def _wait(self, seconds: float) -> Batch:
        self.stage.now += seconds
        self.stage.core.tick(self.stage.now)
        return self.stage.execute()

    def _spark_plans(self, epoch: int) -> list[str]:
        self.stage.planned = Epoch(epoch)
        return self._spark()

    def _spark_commits(self, epoch: int) -> list[str]:
        self.stage.spark_commits(epoch)
        return self._spark()

    def _spark(self) -> list[str]:
        return [f"spark planned={self.stage.planned} committed={self.stage.committed}"]

    def _mailboxes(self) -> list[str]:
        return [
            line + self._of(operator.spec.uid)
            for operator in self.stage.core.operators()
            for line in _gateways(operator.channel)
        ]

    # Printing.

    def _lines(self, batch: Batch, crash: Crash | None = None) -> list[str]:
        groups = [
            ["persist " + self._record(persist.record) for persist in batch.persist],
            [f"answer t={answered.token}: {_answer(answered.answer)}" for answered in batch.answers],
            [f"notice {_notice(notice)}{self._of(getattr(notice, 'operator', None))}" for notice in batch.notices],
        ]
        if crash is None:
            return [line for group in groups for line in group]
        done = list(Crash).index(crash)
        lost = ["lost: " + line for group in groups[done:] for line in group]
        return [*(line for group in groups[:done] for line in group), "x the driver dies", *lost]

    def _record(self, record: Record) -> str:
        return _record(record) + self._of(getattr(record, "operator", None))

    def _of(self, operator: str | None) -> str:
        return f" ({operator})" if operator is not None and len(self.stage.specs) > 1 else ""


class ChannelInterpreter:
    def __init__(self, channel: OperatorChannel) -> None:
        self.channel = channel
        self.barriers: list[BarrierId] = []

    def run(self, words: list[str]) -> list[str]:
        name, arguments = words[0], words[1:]
        commands: dict[str, Callable[[], list[str]]] = {
            "trigger": lambda: self._trigger(BarrierId(int(arguments[0]))),
            "answer": lambda: self._answer(BarrierId(int(arguments[0]))),
            "abort": lambda: self._abort(BarrierId(int(arguments[0]))),
            "open": lambda: self._open(int(arguments[0]), BarrierId(int(arguments[1]))),
            "send": lambda: self._send(SubtaskIndex(int(arguments[0])), arguments[1]),
            "freeze": lambda: [f"{subtask} <- {_words(batches)}" for subtask, batches in self.channel.freeze().items()],
        }
        try:
            lines = commands[name]()
        except CoordControlError as error:
            lines = [f"{type(error).__name__}: {error}"]
        return [*lines, *_gateways(self.channel, self.barriers)]

    def _trigger(self, barrier: BarrierId) -> list[str]:
        asked = self.channel.trigger(barrier, 0.0)
        self.barriers.append(barrier)
        return _asked(asked)

    def _answer(self, barrier: BarrierId) -> list[str]:
        lines = [] if self.channel.answered(barrier, 0.0) else ["late news"]
        return lines + _asked(self.channel.next_phase(0.0))

    def _abort(self, barrier: BarrierId) -> list[str]:
        self.channel.abort(barrier, 0.0)
        return _asked(self.channel.next_phase(0.0))

    def _open(self, subtask: int, barrier: BarrierId) -> list[str]:
        return [] if self.channel.gateways[subtask].open(barrier, 0.0) else ["late news"]

    def _send(self, subtask: SubtaskIndex, name: str) -> list[str]:
        self.channel.send(subtask, event(name), 0.0)
        return []


# Printing.


def _options(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _record(record: Record) -> str:
    match record:
        case Begin():
            inputs = "".join(f" {subtask}<-{_words(batches)}" for subtask, batches in sorted(record.inputs.items()))
            held = "".join(f" {subtask}~{_words(batches)}" for subtask, batches in sorted(record.held.items()))
            return f"begin e={record.epoch} b={_barrier(record.barrier)} state={record.state.decode()}{inputs}{held}"
        case Ack():
            outbox = f" out={_words(record.outbox)}" if record.outbox else ""
            return f"ack {record.subtask} e={record.epoch} t={record.attempt} state={_text(record.state)}{outbox}"
        case RunStarted():
            return f"run-started generation={record.generation} committed={record.committed} planned={record.planned}"
        case LiveFrozen():
            values = "".join(f" {name}={live.version}" for name, live in sorted(record.values.items()))
            return f"live e={record.epoch}{values}"
        case LiveChanged():
            return f"live {record.name}={record.version}"
        case _:
            assert_never(record)


def _answer(answer: Answer) -> str:
    match answer:
        case messages.Welcome():
            return f"welcome state={_text(answer.state)} inputs={_words(answer.inputs)}"
        case messages.Accepted():
            return "accepted"
        case messages.Refused():
            return f"refused, {answer.reason}"
        case _:
            assert_never(answer)


def _notice(notice: Notice) -> str:
    match notice:
        case messages.AskSnapshot():
            return f"ask b={_barrier(notice.barrier)}"
        case messages.CheckpointComplete():
            return f"complete b={_barrier(notice.barrier)}"
        case messages.CheckpointAborted():
            return f"aborted b={_barrier(notice.barrier)}"
        case messages.ResetCoordinator():
            applied = f" applied={notice.applied}" * bool(notice.applied)
            return f"reset b={_barrier(notice.barrier)} state={_text(notice.state)}{applied}"
        case messages.HandleRequests():
            return f"requests i={notice.incarnation}"
        case messages.EventsWait():
            return "events wait"
        case messages.EventsDurable():
            return f"durable n={notice.number}"
        case messages.DeliverEvents():
            return f"deliver {notice.subtask} t={notice.attempt} {_words(notice.events)}"
        case messages.AttemptReady():
            return f"ready {notice.subtask} t={notice.attempt}"
        case messages.AttemptFailed():
            return f"failed {notice.subtask} t={notice.attempt}: {notice.reason}"
        case messages.SubtaskReset():
            return f"subtask-reset {notice.subtask} b={_barrier(notice.barrier)}"
        case messages.EpochSettled():
            different = f" nondeterministic={notice.nondeterministic_subtasks}" * bool(notice.nondeterministic_subtasks)
            counts = f"ran={notice.ran} down={notice.events_down} up={notice.events_up}"
            return f"settled e={notice.epoch} {counts}{different}"
        case messages.QueryCaptured():
            return f"captured {notice.checkpoint} at {notice.boundary}: " + "; ".join(map(_cut, notice.cuts))
        case messages.CheckpointFailed():
            return f"checkpoint {notice.checkpoint} failed: {notice.reason.name}"
        case messages.FailQuery():
            return f"fail-query {type(notice.error).__name__}: {notice.error}".replace("\n", " ")
        case _:
            assert_never(notice)


def _cut(cut: OperatorCut) -> str:
    parts = [f"{cut.operator} S={_text(cut.coordinator_state)}"]
    parts += [f"{subtask}={_text(state)}" for subtask, state in sorted(cut.states.items())]
    parts += [f"{subtask}<-{_words(batches)}" for subtask, batches in sorted(cut.down.items())]
    parts += [f"{outbox.subtask}->{_words(outbox.events)}" for outbox in cut.up]
    return " ".join(parts)


def _gateways(channel: OperatorChannel, barriers: list[BarrierId] | None = None) -> list[str]:
    lines = []
    for subtask, gateway in enumerate(channel.gateways):
        states = "".join(f" {barrier}={gateway.state(barrier).value}" for barrier in barriers or ())
        lines.append(f"{subtask}: mailbox={_words(gateway.mailbox)} blocked={gateway.blocked}{states}")
    return lines


def _asked(barrier: BarrierId | None) -> list[str]:
    return [] if barrier is None else [f"ask {barrier}"]


def _words(batches: list[EventBatch] | tuple[EventBatch, ...]) -> str:
    return f"[{names(batches)}]"


def _text(value: bytes | None) -> str:
    return "-" if value is None else value.decode()


def _barrier(barrier: BarrierId) -> str:
    return "-" if barrier == NO_CHECKPOINT else f"{barrier >> 32}.{barrier & 0xFFFFFFFF}"
