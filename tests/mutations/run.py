"""Does the simulation find bugs? ``python -m tests.mutations.run`` puts bugs in, one at a time, and looks.
Rules that the simulation does not have (:mod:`.tested`) are held against tests.

A mutation replaces a piece of text in the source of one function, for the length of a ``with`` block. When the code
changes and the text is not there any more, that is an error: the mutation must be carried over to the new code.

Every mutation has to be caught. One that is not says that the simulation is too weak, or that the rule is not needed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Final

from coord_control.durable.epochs import records_codec
from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.durable.epochs.generation_log import GenerationLog
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.generations import Claim
from coord_control.protocol import liveness, recovery
from coord_control.protocol.channel import OperatorChannel
from coord_control.protocol.gateway import Gateway
from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import Batch
from coord_control.protocol.operator import OperatorRun
from coord_control.protocol.scheduler.checkpoint_run import CheckpointRun
from tests.mutations.checkpoint_mutations import CHECKPOINT_MUTATIONS
from tests.mutations.control_mutations import CONTROL_MUTATIONS
from tests.mutations.live_mutations import LIVE_MUTATIONS
from tests.mutations.mutation import Mutation
from tests.mutations.request_mutations import REQUEST_MUTATIONS
from tests.mutations.tested import TESTED_MUTATIONS, fails, passes
from tests.mutations.wake_mutations import WAKE_MUTATIONS
from tests.simulation.histories import Failure, explain, run_seed, shorten

__all__ = ["MUTATIONS", "Mutation", "catch", "main"]

_PROCESSES: Final = 2
_MAX_SEEDS: Final = 10_000


#: The rules of the protocol, each left out or turned round.
MUTATIONS: Final[tuple[Mutation, ...]] = (
    Mutation(
        "answer before the records are durable",
        JobCore.take,
        "batch, self._batch = self._batch, Batch()",
        "batch, self._batch = self._batch, Batch()\n    batch.persist, self._batch.persist = [], batch.persist",
    ),
    Mutation(
        "an interrupted run has made no commit",
        JobCore.may_have_finished,
        "return not any(",
        "return False and any(",
    ),
    Mutation("drop the outbox on settle", OperatorRun._settle, "if outbox]", "if False]"),
    Mutation("forget frozen inputs on recovery", recovery.recover, "begin.barrier, begin.inputs", "begin.barrier, {}"),
    Mutation(
        "open the gateways at the begin",
        OperatorRun._begin,
        "epoch.begun(inputs)",
        "epoch.begun(inputs)\n    for each in range(self.spec.parallelism):\n        self._open(epoch, each, 0.0)",
    ),
    Mutation(
        "do not close the gateways",
        OperatorChannel.answered,
        "gateway.close(barrier)",
        "gateway.close(barrier)\n        gateway.open(barrier, now)",
    ),
    Mutation(
        "leave out the check of the attempt's generation",
        JobCore._refusal,
        "if attempt.generation != self.generation:",
        "if False:",
    ),
    Mutation(
        "leave out the check of the attempt's run",
        JobCore._refusal,
        "if attempt.run in query.ended_runs or attempt.task_attempt <= query.attempt_floor:",
        "if False:",
    ),
    Mutation(
        "leave out the run's name in the check of the attempt's run",
        JobCore._refusal,
        "attempt.run in query.ended_runs or ",
        "",
    ),
    Mutation(
        "leave out the check of committed epochs",
        JobCore._refusal,
        "if attempt.epoch <= query.committed:",
        "if False:",
    ),
    Mutation(
        "do not look at the claim before answering",
        Claim.is_current,
        "if not _holds(self._files, _path(self._folder, self.generation), self._content):",
        "if False:",
    ),
    Mutation(
        "give answers on an old check of the claim",
        Claim.is_fresh,
        "self._clock() - self._checked_at <= LEASE_SECONDS",
        "True",
    ),
    Mutation(
        "look only whether a claim is there, not whose it is",
        generations._holds,
        "files.read(path) == content",
        "bool(files.read(path))",
    ),
    Mutation(
        "leave the claims of older drivers as they are",
        generations._supersede,
        "if older.superseded_by is None:",
        "if False:",
    ),
    Mutation(
        "compare the clocks of two drivers to find the older one",
        generations._supersede,
        "if older.superseded_by is None:",
        "if older.superseded_by is None and older.claimed_at <= _read(files, folder, newest).claimed_at:",
    ),
    Mutation(
        "own a generation that another driver wants too",
        generations._is_confirmed,
        "wanted == {mine.token} and ",
        "",
    ),
    Mutation(
        "own a generation although a newer one has been claimed",
        generations._is_confirmed,
        " and newest == mine.generation",
        "",
    ),
    Mutation(
        "drop the inputs of absent subtasks",
        OperatorRun._settle,
        "self.channel.put_back(epoch.returned())",
        "pass",
    ),
    Mutation(
        "put inputs of absent subtasks behind later events",
        OperatorRun._settle,
        "completed = list(epoch.completed())",
        "for subtask, batches in epoch.returned().items():\n"
        "        mailbox = self.channel.gateways[subtask].mailbox\n"
        "        mailbox[:] = [each for each in mailbox if each not in batches] + list(batches)\n"
        "    completed = list(epoch.completed())",
    ),
    Mutation(
        "apply the state of an ack before the commit",
        OperatorRun.acknowledge,
        "participant.acknowledge(ack)",
        "participant.acknowledge(ack)\n    self.states[attempt.subtask] = ack.state",
    ),
    Mutation(
        "do not record an ack that only consumed inputs",
        OperatorRun.acknowledge,
        " or attempt.subtask in epoch.inputs",
        "",
    ),
    Mutation(
        "do not record an ack that replaces a recorded one",
        OperatorRun.acknowledge,
        "participant.recorded or ack.state",
        "ack.state",
    ),
    Mutation(
        "do not record a begin after a delivered outbox",
        OperatorRun._begin,
        " or self._delivered_since",
        "",
    ),
    Mutation(
        "do not count frozen inputs among what waits",
        OperatorRun.waiting_bytes,
        ".waiting_bytes + frozen",
        ".waiting_bytes",
    ),
    Mutation(
        "let a channel grow after its query has failed",
        JobCore._current,
        " and self._query_of[uid].running",
        "",
    ),
    Mutation("do not record frozen inputs", OperatorRun._begin, "if inputs or ", "if "),
    Mutation(
        "record every begin",
        OperatorRun._begin,
        "if inputs or held or self._delivered_since or state != self._recorded_state:",
        "if True:",
    ),
    Mutation(
        "do not void stale acks when their epoch is run again",
        recovery.rerun_marker,
        "if History.of(facts.records).is_void_after(facts.committed, facts.planned):",
        "if False:",
    ),
    Mutation(
        "do not void records of epochs that are not planned any more",
        recovery.recovery_marker,
        "if History.of(facts.records).is_void_after(facts.planned, facts.planned):",
        "if False:",
    ),
    Mutation(
        "void the acks of the planned epoch at once",
        recovery.recovery_marker,
        "RunStarted(generation, facts.planned, facts.planned)",
        "RunStarted(generation, facts.committed, facts.planned)",
    ),
    Mutation(
        "forget the acks of an epoch that Spark commits without running it again",
        OperatorRun._replay,
        "self.epoch.before = replay.acks",
        "pass",
    ),
    Mutation(
        "let acks from before count although their epoch is run again",
        OperatorRun.runs_again,
        "self.epoch.before = {}",
        "pass",
    ),
    Mutation(
        "run a planned epoch without a begin record with new inputs",
        recovery.recover,
        "Replay(next_epoch, None, {}, before) if planned else None",
        "None",
    ),
    Mutation(
        "deliver outboxes again that the coordinator's state reflects",
        recovery.recover,
        "_outboxes(acks, newest), mailboxes",
        "_outboxes(acks, Epoch(0)), mailboxes",
    ),
    Mutation(
        "do not deliver outboxes again",
        recovery.recover,
        "_outboxes(acks, newest), mailboxes",
        "(), mailboxes",
    ),
    Mutation(
        "forget unconsumed inputs of the newest begin record",
        recovery.recover,
        "_outboxes(acks, newest), mailboxes",
        "_outboxes(acks, newest), {}",
    ),
    Mutation(
        "drop the events of a barrier that opens",
        Gateway.open,
        "self._before(barrier).extend(held)",
        "held.clear()",
    ),
    Mutation(
        "drop the events of an aborted barrier",
        OperatorChannel.abort,
        "gateway.open(barrier, now)",
        "gateway._barriers.get(barrier) and gateway._barriers[barrier].clear()\n        gateway.open(barrier, now)",
    ),
    Mutation(
        "give the events of an aborted barrier to the mailbox, before older ones",
        Gateway._before,
        "return older[-1] if older else self.mailbox",
        "return self.mailbox",
    ),
    Mutation(
        "take calls of an earlier incarnation of the coordinator",
        OperatorChannel.is_current,
        "return incarnation == self.incarnation",
        "return True",
    ),
    Mutation(
        "count barriers from one in every generation",
        JobCore.__init__,
        "generation * _BARRIERS_PER_GENERATION",
        "0",
    ),
    Mutation(
        "settle a commit that was only seen",
        JobCore._settle,
        "run is None or any(",
        "any(",
    ),
    Mutation(
        "settle an epoch whose output was cut off",
        OperatorRun.check_consumed,
        "if subtasks else None",
        "if False else None",
    ),
    Mutation(
        "answer what rests on lost records",
        JobCore.fail_all,
        "messages.Answered(answered.token, refused)",
        "answered",
    ),
    Mutation(
        "forget an aborted checkpoint with the records that are lost",
        Batch.told_anyway,
        "isinstance(notice, FailQuery | CheckpointFailed)",
        "isinstance(notice, FailQuery)",
    ),
    Mutation(
        "cut a checkpoint again while a pin of the cut before runs",
        CheckpointRun._step,
        "not self._pinning and ",
        "",
    ),
    Mutation(
        "begin a generation without a base of its own",
        EpochStore._take_over,
        "    self._write_base(0, records)\n",
        "    if source is None:\n        self._write_base(0, records)\n",
    ),
    Mutation(
        "skip a segment that is missing",
        GenerationLog._read,
        "self._report_gap(expected)",
        "pass",
    ),
    Mutation(
        "do not check the sums of a segment",
        records_codec._Reader._check_crc,
        "if stored != computed:",
        "if False:",
    ),
    Mutation(
        "drop the newest old begin record when compacting",
        liveness._thinned,
        "return record.epoch == floor\n",
        "return record.epoch == floor and not isinstance(record, Begin)\n",
    ),
    Mutation(
        "drop the newest old state when compacting",
        liveness._thinned,
        "return is_undelivered or record.epoch == newest[record.operator, record.subtask]",
        "return is_undelivered",
    ),
    *CHECKPOINT_MUTATIONS,
    *CONTROL_MUTATIONS,
    *REQUEST_MUTATIONS,
    *LIVE_MUTATIONS,
    *WAKE_MUTATIONS,
)


def catch(mutation: Mutation, seeds: int = _MAX_SEEDS) -> Failure | None:
    """Run the simulation with a bug until a history breaks a rule that holds without it.

    Returns:
        That history; None: none of ``seeds`` histories did.
    """
    for seed in range(seeds):
        with mutation.applied():
            _, failure = run_seed(seed)
        if failure is not None and run_seed(seed)[1] is None:
            return failure
    return None


def explained(mutation: Mutation, failure: Failure) -> str:
    """The shortest history found that the bug breaks."""
    with mutation.applied():
        return explain(shorten(failure))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code, 1 when a mutation was not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=_MAX_SEEDS, help="for each mutation (default: %(default)s)")
    parser.add_argument("--explain", metavar="WORDS", help="only mutations with WORDS in their name, with a history")
    options = parser.parse_args(arguments)
    words = options.explain or ""
    chosen = [number for number, each in enumerate(MUTATIONS) if words in each.name]
    tested = [number for number, (each, _) in enumerate(TESTED_MUTATIONS) if words in each.name]
    names = [MUTATIONS[number].name for number in chosen] + [TESTED_MUTATIONS[number][0].name for number in tested]
    width = max(map(len, names), default=0)
    escaped = 0
    with ProcessPoolExecutor(_PROCESSES) as pool:
        caught = pool.map(_catch_number, chosen, [options.seeds] * len(chosen), [bool(options.explain)] * len(chosen))
        for number, (failure, history) in zip(chosen, caught, strict=True):
            escaped += failure is None
            what = "NOT CAUGHT" if failure is None else f"seed {failure.seed:<4} {failure.message[:100]}"
            print(f"{MUTATIONS[number].name:{width}}  {what}", flush=True)
            if history:
                print(history, end="\n\n")
    if tested and not passes(tested):
        print("the tests fail without a mutation: mend that first")
        return 1
    with ThreadPoolExecutor(_PROCESSES) as threads:
        for number, is_caught in zip(tested, threads.map(fails, tested), strict=True):
            mutation, tests = TESTED_MUTATIONS[number]
            escaped += not is_caught
            print(f"{mutation.name:{width}}  {tests if is_caught else 'NOT CAUGHT'}", flush=True)
    print(f"{len(names) - escaped} of {len(names)} mutations caught")
    return 1 if escaped else 0


def _catch_number(number: int, seeds: int, explains: bool) -> tuple[Failure | None, str]:
    failure = catch(MUTATIONS[number], seeds)
    return failure, explained(MUTATIONS[number], failure) if failure is not None and explains else ""


if __name__ == "__main__":
    sys.exit(main())
