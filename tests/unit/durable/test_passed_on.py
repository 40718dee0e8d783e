from __future__ import annotations

from collections.abc import Iterator

import pytest

from coord_control.durable.files.passed_on import PassedOn, guarded


def test_chunks_pass_as_they_are() -> None:
    assert list(guarded([b"a", b"b"])) == [b"a", b"b"]


def test_an_error_of_the_chunks_is_carried_to_the_caller() -> None:
    error = OSError("of another storage")

    def chunks() -> Iterator[bytes]:
        yield b"a"
        raise error

    with pytest.raises(PassedOn) as raised:
        list(guarded(chunks()))
    assert raised.value.error is error
