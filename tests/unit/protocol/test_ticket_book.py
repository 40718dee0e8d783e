"""The book of a job's tickets: the order in which they start, and which keys are remembered."""

from __future__ import annotations

from coord_control.ids import CheckpointId, CheckpointKind
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.ticket_book import REMEMBERED_KEYS, TicketBook
from coord_control.protocol.scheduler.tickets import CheckpointRequest, Ticket, TicketId

MANUAL = CheckpointRequest()
PERIODIC = CheckpointRequest(periodic=True)
SAVEPOINT = CheckpointRequest(kind=CheckpointKind.SAVEPOINT)


def enqueued(book: TicketBook, *requests: CheckpointRequest) -> list[Ticket]:
    tickets = [book.new(request, 0.0) for request in requests]
    for ticket in tickets:
        book.enqueue(ticket)
    return tickets


def run_through(book: TicketBook, key: str, reason: FailureReason | None = None) -> Ticket:
    enqueued(book, CheckpointRequest(key=key))
    started = book.start_first(CheckpointId(1), 1.0)
    ended = started.completed(None, 2.0) if reason is None else started.failed(reason, "", 2.0)
    book.end(ended)
    return ended


def test_tickets_are_numbered_in_the_order_of_the_requests() -> None:
    book = TicketBook()
    assert [ticket.id for ticket in enqueued(book, PERIODIC, SAVEPOINT)] == [1, 2]
    assert [ticket.id for ticket in book.pending] == [1, 2]


def test_the_queue_is_ordered_by_rank_and_then_by_time() -> None:
    book = TicketBook()
    enqueued(book, PERIODIC, MANUAL, SAVEPOINT, PERIODIC, MANUAL, SAVEPOINT)
    assert [ticket.id for ticket in book.queued] == [3, 6, 2, 5, 1, 4]
    assert book.first == book.queued[0]


def test_what_has_started_runs_under_its_number_until_it_ends() -> None:
    book = TicketBook()
    [first, second] = enqueued(book, MANUAL, MANUAL)
    started = book.start_first(CheckpointId(5), 1.0)
    assert (started.id, started.checkpoint) == (first.id, 5)
    assert (book.queued, book.running) == ((second,), (started,))
    assert (book.by_checkpoint(CheckpointId(5)), book.by_id(first.id), book.latest(first)) == (started,) * 3
    aborting = started.aborted(FailureReason.ABORTED, "", 2.0)
    book.update(aborting)
    assert book.by_checkpoint(CheckpointId(5)) == aborting
    book.end(aborting.failed(FailureReason.ABORTED, "", 3.0))
    assert (book.running, book.by_checkpoint(CheckpointId(5)), book.by_id(first.id)) == ((), None, None)
    assert book.pending == (second,)


def test_an_empty_book_has_nothing_to_start() -> None:
    book = TicketBook()
    assert (book.first, book.by_id(TicketId(1)), book.by_checkpoint(CheckpointId(1)), book.by_key("k")) == (None,) * 4


def test_a_key_finds_its_ticket_pending_and_ended() -> None:
    book = TicketBook()
    [_, waiting] = enqueued(book, MANUAL, CheckpointRequest(key="k"))
    assert book.by_key("k") == waiting
    book.end(waiting.aborted(FailureReason.ABORTED, "", 1.0))
    assert book.by_key("k") is None, "it never started: the request can be repeated"
    ended = run_through(TicketBook(), "k")
    book.remember(ended)
    assert book.by_key("k") == ended


def test_a_failure_is_remembered_unless_it_came_before_the_coordinators_were_asked() -> None:
    book = TicketBook()
    failed = run_through(book, "failed", FailureReason.DISK_FULL)
    run_through(book, "refused", FailureReason.INVALID_TARGET)
    assert book.by_key("failed") == failed
    assert book.by_key("refused") is None


def test_only_the_newest_keys_are_remembered() -> None:
    book = TicketBook()
    for number in range(REMEMBERED_KEYS):
        run_through(book, f"key {number}")
    run_through(book, "key 0")
    assert book.by_key("key 1") is not None
    run_through(book, "one more")
    assert book.by_key("key 1") is None
    assert book.by_key("key 0") is not None, "it has ended once more since"
    assert book.by_key("one more") is not None


def test_one_without_a_key_takes_no_place() -> None:
    book = TicketBook()
    kept = run_through(book, "kept")
    for _ in range(REMEMBERED_KEYS + 1):
        enqueued(book, MANUAL)
        book.end(book.start_first(CheckpointId(1), 1.0).completed(None, 2.0))
    assert book.by_key("kept") == kept


def test_the_key_of_a_checkpoint_that_was_removed_asks_for_another_one() -> None:
    """Bug: whoever repeated the request was given a checkpoint that was not there any more."""
    book = TicketBook()
    enqueued(book, CheckpointRequest(key="removed"))
    book.end(book.start_first(CheckpointId(1), 1.0).completed("/there", 2.0))
    enqueued(book, CheckpointRequest(key="kept"))
    book.end(book.start_first(CheckpointId(2), 1.0).completed("/there", 2.0))
    book.forget(CheckpointId(1))
    assert book.by_key("removed") is None
    assert book.by_key("kept") is not None
