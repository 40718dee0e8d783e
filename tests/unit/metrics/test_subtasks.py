from __future__ import annotations

from coord_control.metrics.subtasks import MAX_SUBTASKS, choose
from coord_control.protocol.status import GatewayStatus


def gateway(subtask: int, blocked: int = 0, seconds: float = 0.0) -> GatewayStatus:
    return GatewayStatus(subtask, not blocked, blocked, blocked, seconds, 0)


def numbers(gateways: list[GatewayStatus], limit: int) -> list[int]:
    chosen, left_out = choose([("q", "op", gateways)], limit)
    assert len(chosen) + left_out == len(gateways)
    return [each.subtask for _, _, each in chosen]


def test_those_with_most_blocked_events_come_first_then_the_longest_blocked_then_the_lowest_number() -> None:
    gateways = [gateway(0), gateway(1, 5), gateway(2, 0, 9.0), gateway(3, 7), gateway(4)]
    assert [numbers(gateways, limit) for limit in range(6)] == [
        [],
        [3],
        [1, 3],
        [1, 2, 3],
        [0, 1, 2, 3],
        [0, 1, 2, 3, 4],
    ]


def test_the_limit_is_for_all_operators_together() -> None:
    chosen, left_out = choose([("q", "a", [gateway(0), gateway(1, 1)]), ("q", "b", [gateway(0, 2)])], 2)
    assert [(uid, each.subtask) for _, uid, each in chosen] == [("a", 1), ("b", 0)]
    assert left_out == 1


def test_nobody_gets_more_than_the_cap() -> None:
    assert len(numbers([gateway(subtask) for subtask in range(MAX_SUBTASKS + 5)], 10**9)) == MAX_SUBTASKS
