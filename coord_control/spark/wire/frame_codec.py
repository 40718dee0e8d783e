"""The frames between subtasks and the driver: four bytes of length, one byte of kind, a MessagePack body.

Why not pickle: a frame is read before anything is known about its sender, so reading one must only ever build the few
message types listed here. msgspec checks every type while it decodes; whatever does not fit is a :class:`FrameInvalid`.

An answer that is larger than a frame may be is cut: its first pieces travel in frames of the kind PART, the last one in
a frame of the answer's own kind. So whatever waits for a subtask can be sent to it, also where an earlier release has
let it grow. Requests are never cut: what a subtask may say fits into one frame.

Why two limits: before a peer has proved that it knows the secret, it may make us hold 1 KiB and no more. Afterwards one
frame may carry an operator state of 1 MiB and everything that was sent in an epoch.

This module does no I/O and keeps no global state that changes; it may be used from any thread. A :class:`FrameReader`
belongs to one connection.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from coord_control.errors import FrameInvalid
from coord_control.protocol.messages import (
    Accepted,
    Acknowledge,
    Answer,
    AttemptEnded,
    Hello,
    Refused,
    Welcome,
)

__all__ = [
    "GREETING_FRAME_BYTES",
    "MAX_FRAME_BYTES",
    "PROTOCOL_VERSION",
    "Buffer",
    "Challenge",
    "FrameReader",
    "Greeting",
    "Kind",
    "Message",
    "Proof",
    "Rejected",
    "Request",
    "Response",
    "decode_answer",
    "decode_greeting",
    "decode_request",
    "encode",
    "encode_answer",
]

#: 2: answers may come in several frames.
PROTOCOL_VERSION: Final = 2

#: Kind and body of one frame of an authenticated peer: an operator state (1 MiB) and an epoch's events, with room.
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024

#: The same for a peer that has not proved anything yet; a handshake frame takes about 100 bytes.
GREETING_FRAME_BYTES: Final = 1024

Buffer: TypeAlias = bytes | bytearray | memoryview

_HEADER: Final = struct.Struct(">IB")  # length of kind and body, kind
_HEADER_BYTES: Final = _HEADER.size
_LENGTH_BYTES: Final = 4


class Kind(enum.IntEnum):
    """What a frame holds. The numbers are part of the protocol: they never change their meaning."""

    CHALLENGE = 1
    RESPONSE = 2
    PROOF = 3
    REJECTED = 4
    HELLO = 16
    ACKNOWLEDGE = 17
    ATTEMPT_ENDED = 18
    WELCOME = 32
    ACCEPTED = 33
    REFUSED = 34
    PART = 35  #: a piece of the answer that follows


# The handshake's messages. Every release can read ``version`` of every other one: all other fields have defaults,
# unknown ones are ignored, and nothing but the version is looked at before the versions are known to agree.


@dataclass(frozen=True, slots=True)
class Challenge:
    """The driver's first word."""

    version: int
    nonce: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """The client proves that it knows the secret, and challenges the driver in turn."""

    version: int
    nonce: bytes = b""
    proof: bytes = b""


@dataclass(frozen=True, slots=True)
class Proof:
    """The driver proves that it knows the secret."""

    proof: bytes = b""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Either side's last word when the handshake failed."""

    reason: str = ""
    why: str = ""


Greeting: TypeAlias = Challenge | Response | Proof | Rejected
Request: TypeAlias = Hello | Acknowledge | AttemptEnded
Message: TypeAlias = Greeting | Request | Answer

# Typed with Any because a mapping cannot say that the decoder's type follows from the key; the functions below do.
_Decoders: TypeAlias = Mapping[int, msgspec.msgpack.Decoder[Any]]

_KINDS: Final[Mapping[type, Kind]] = {
    Challenge: Kind.CHALLENGE,
    Response: Kind.RESPONSE,
    Proof: Kind.PROOF,
    Rejected: Kind.REJECTED,
    Hello: Kind.HELLO,
    Acknowledge: Kind.ACKNOWLEDGE,
    AttemptEnded: Kind.ATTEMPT_ENDED,
    Welcome: Kind.WELCOME,
    Accepted: Kind.ACCEPTED,
    Refused: Kind.REFUSED,
}


def _decoders(*types: type) -> _Decoders:
    return {int(_KINDS[type_]): msgspec.msgpack.Decoder(type_) for type_ in types}


_GREETINGS: Final = _decoders(Challenge, Response, Proof, Rejected)
_REQUESTS: Final = _decoders(Hello, Acknowledge, AttemptEnded)
_ANSWERS: Final = _decoders(Welcome, Accepted, Refused)
_ENCODER: Final = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """Make the frame of ``message``.

    Raises:
        FrameInvalid: it would be larger than the other side accepts.
    """
    kind = _KINDS[type(message)]
    body = _ENCODER.encode(message)
    length = len(body) + 1
    if length > MAX_FRAME_BYTES:
        raise FrameInvalid(
            f"{kind.name} would take {length} bytes, the limit is {MAX_FRAME_BYTES}; send fewer or smaller events in "
            "one epoch"
        )
    return _HEADER.pack(length, kind) + body


def encode_answer(answer: Answer) -> list[bytes]:
    """Make the frames of ``answer``: one, or as many as its size takes."""
    kind, body = _KINDS[type(answer)], _ENCODER.encode(answer)
    most = MAX_FRAME_BYTES - 1
    if len(body) <= most:
        return [_HEADER.pack(len(body) + 1, kind) + body]
    pieces = [body[at : at + most] for at in range(0, len(body), most)]
    kinds = [Kind.PART] * (len(pieces) - 1) + [kind]
    return [_HEADER.pack(len(piece) + 1, each) + piece for each, piece in zip(kinds, pieces, strict=True)]


def decode_request(kind: int, body: Buffer) -> Request:
    """Read what a subtask says; raises :class:`FrameInvalid`."""
    request: Request = _decode(_REQUESTS, kind, body)
    return request


def decode_answer(kind: int, body: Buffer) -> Answer:
    """Read what the driver answers; raises :class:`FrameInvalid`."""
    answer: Answer = _decode(_ANSWERS, kind, body)
    return answer


def decode_greeting(kind: int, body: Buffer) -> Greeting:
    """Read a frame of the handshake; raises :class:`FrameInvalid`."""
    greeting: Greeting = _decode(_GREETINGS, kind, body)
    return greeting


def _decode(decoders: _Decoders, kind: int, body: Buffer) -> Any:
    decoder = decoders.get(kind)
    if decoder is None:
        raise FrameInvalid(f"kind {kind} is not expected here")
    try:
        return decoder.decode(body)
    # ValueError covers msgspec's own errors and invalid UTF-8; RecursionError is how deep nesting ends.
    except (ValueError, RecursionError) as error:
        raise FrameInvalid(f"{Kind(kind).name}: {error}") from error


class FrameReader:
    """Cuts a stream of bytes into frames and holds at most one incomplete frame.

    Memory follows the bytes that have arrived, never a length that was announced.

    Attributes:
        limit: largest kind and body in bytes; may be changed at any time, also between two frames of one read.
    """

    __slots__ = ("_held", "limit")

    def __init__(self, limit: int = GREETING_FRAME_BYTES) -> None:
        self.limit = limit
        self._held = bytearray()

    @property
    def held(self) -> int:
        """Bytes of an incomplete frame that are kept until the rest arrives."""
        return len(self._held)

    def frames(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Go through the frames that ``data`` completes, and keep what is left; exhaust it before the next call.

        Args:
            data: the next bytes of the stream. They are not needed any more when the iteration ends.

        Yields:
            kind and body; the body is a view that is valid until the next frame is asked for.

        Raises:
            FrameInvalid: a frame is empty or above the limit. The stream cannot be read any further.
        """
        at, end = 0, len(data)
        if self._held:
            at = self._top_up(data)
            if not self._is_complete():
                return
            frame, self._held = self._held, bytearray()
            yield frame[_LENGTH_BYTES], memoryview(frame)[_HEADER_BYTES:]
        while end - at >= _HEADER_BYTES:
            stop = at + self._size(data, at)
            if stop > end:
                break
            yield data[at + _LENGTH_BYTES], data[at + _HEADER_BYTES : stop]
            at = stop
        self._held += data[at:]

    def _top_up(self, data: memoryview) -> int:
        """Add to the incomplete frame what it needs of ``data``; return how much that was."""
        held = self._held
        taken = 0
        if len(held) < _HEADER_BYTES:
            taken = min(_HEADER_BYTES - len(held), len(data))
            held += data[:taken]
        if len(held) >= _HEADER_BYTES:
            stop = taken + self._size(held, 0) - len(held)
            held += data[taken:stop]
            taken = min(stop, len(data))
        return taken

    def _is_complete(self) -> bool:
        return len(self._held) >= _HEADER_BYTES and len(self._held) == self._size(self._held, 0)

    def _size(self, data: Buffer, at: int) -> int:
        """Return the size of the whole frame that begins at ``at``."""
        length: int = _HEADER.unpack_from(data, at)[0]
        if not 0 < length <= self.limit:
            raise FrameInvalid(f"a length of {length} bytes; 1 to {self.limit} are allowed here")
        return _LENGTH_BYTES + length
