from __future__ import annotations

from coord_control.durable.restore.sink_kinds import SINK_KINDS, Repeated, kind_of


def test_a_kind_that_is_not_known_may_do_anything() -> None:
    kind = kind_of("Unheard")
    assert (kind.title, kind.repeated, kind.has_versions) == ("a sink of kind Unheard", Repeated.UNKNOWN, False)


def test_what_can_be_set_back_skips_epochs() -> None:
    """Otherwise a restore without its sinks would not be refused, and the command that sets them back not be named."""
    assert {name for name, kind in SINK_KINDS.items() if kind.has_versions} == {"file", "delta", "iceberg"}
    assert all(kind.repeated is Repeated.SKIPPED for kind in SINK_KINDS.values() if kind.has_versions)
    assert all(kind.has_versions for kind in SINK_KINDS.values() if kind.command is not None)
