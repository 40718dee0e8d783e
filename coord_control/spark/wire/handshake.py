"""Both sides prove that they know the generation's secret before anything else is sent.

    driver                                          client
      | -- CHALLENGE  version, nonce s ------------->  |
      | <- RESPONSE   version, nonce c, proof(client)  |
      | -- PROOF      proof(driver) ---------------->  |

    proof(role) = HMAC-SHA256(secret, role, version, generation, s, c)

The secret itself never travels. Both nonces are part of both proofs, so a recorded handshake is worth nothing on
another connection; the role is part of them too, so a proof cannot be sent back to its maker. The secret belongs to one
generation of the driver: a worker of an earlier generation fails here, before the protocol's own fencing would refuse
it. A wrong version is reported on both sides: the side that sees it first sends a REJECTED frame.

Sans-IO and without randomness: nonces come in, frames go out. One object serves one connection, on the thread that
owns it.
"""

from __future__ import annotations

import abc
import enum
import hashlib
import hmac
import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

from coord_control.errors import FrameInvalid, InvalidTransition
from coord_control.ids import Generation
from coord_control.spark.wire.frame_codec import (
    PROTOCOL_VERSION,
    Buffer,
    Challenge,
    Greeting,
    Proof,
    Rejected,
    Response,
    decode_greeting,
    encode,
)

__all__ = [
    "NONCE_BYTES",
    "SECRET_BYTES",
    "ClientHandshake",
    "Failed",
    "Proceed",
    "Reason",
    "ServerHandshake",
    "Step",
    "prove",
]

SECRET_BYTES: Final = 32
NONCE_BYTES: Final = 32

_CLIENT: Final = b"coord-control client"
_DRIVER: Final = b"coord-control driver"
_NUMBERS: Final = struct.Struct(">IQ")  # protocol version, generation


class Reason(enum.Enum):
    """Why a handshake failed."""

    VERSION = "version"  #: the two sides run releases that do not understand each other
    SECRET = "secret"  #: the other side knows another secret, or none
    MALFORMED = "malformed"  #: a frame that is not part of a handshake at this point
    REJECTED = "rejected"  #: the other side closed the handshake, for a reason that it named


@dataclass(frozen=True, slots=True)
class Proceed:
    """Send ``frame``; when ``is_done``, the other side is authenticated."""

    frame: bytes
    is_done: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """Send ``frame`` if there is one, then close the connection."""

    reason: Reason
    why: str
    frame: bytes = b""


Step: TypeAlias = Proceed | Failed


def prove(role: bytes, secret: bytes, generation: Generation, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """Make the proof of one role. All parts have a fixed length for that role, so no two inputs give the same bytes."""
    text = role + _NUMBERS.pack(PROTOCOL_VERSION, generation) + server_nonce + client_nonce
    return hmac.digest(secret, text, hashlib.sha256)


class _Handshake(abc.ABC):
    """What both sides share: the checks, and the end."""

    __slots__ = ("_generation", "_is_over", "_nonce", "_secret")

    def __init__(self, secret: bytes, generation: Generation, nonce: bytes) -> None:
        """Check the lengths of what both sides need.

        Args:
            secret: the generation's secret, ``SECRET_BYTES`` long.
            generation: what both sides must agree on.
            nonce: ``NONCE_BYTES`` fresh random bytes of this side.
        """
        if len(secret) != SECRET_BYTES or len(nonce) != NONCE_BYTES:
            raise ValueError(f"a secret takes {SECRET_BYTES} bytes and a nonce {NONCE_BYTES}")
        self._secret, self._generation, self._nonce = secret, generation, nonce
        self._is_over = False

    def receive(self, kind: int, body: Buffer) -> Step:
        """Take the other side's next frame and say what to do.

        Raises:
            InvalidTransition: the handshake was over already.
        """
        if self._is_over:
            raise InvalidTransition("handshake", "over", f"frame of kind {kind}")
        try:
            step = self._answer(decode_greeting(kind, body))
        except FrameInvalid as error:
            step = _fail(Reason.MALFORMED, error.problem)
        self._is_over = isinstance(step, Failed) or step.is_done
        return step

    @abc.abstractmethod
    def _answer(self, greeting: Greeting) -> Step: ...

    def _proof(self, role: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
        return prove(role, self._secret, self._generation, server_nonce, client_nonce)


class ServerHandshake(_Handshake):
    """The driver's side. Begin with :meth:`challenge`."""

    __slots__ = ()

    def challenge(self) -> bytes:
        """Return the first frame of the connection."""
        return encode(Challenge(PROTOCOL_VERSION, self._nonce))

    def _answer(self, greeting: Greeting) -> Step:
        match greeting:
            case Response(version, _, _) if version != PROTOCOL_VERSION:
                return _fail(Reason.VERSION, _other_version("the driver", "the client", version))
            case Response(_, nonce, proof) if len(nonce) == NONCE_BYTES:
                if not hmac.compare_digest(proof, self._proof(_CLIENT, self._nonce, nonce)):
                    return _fail(Reason.SECRET, "the client's secret is not the one of this driver's generation")
                return Proceed(encode(Proof(self._proof(_DRIVER, self._nonce, nonce))), is_done=True)
            case Rejected():
                return _rejected("the client", greeting)
            case _:
                return _fail(Reason.MALFORMED, f"a well-formed response was expected, not {type(greeting).__name__}")


class ClientHandshake(_Handshake):
    """The worker's side. It waits for the driver's challenge."""

    __slots__ = ("_server_nonce",)

    def __init__(self, secret: bytes, generation: Generation, nonce: bytes) -> None:
        super().__init__(secret, generation, nonce)
        self._server_nonce: bytes | None = None

    def _answer(self, greeting: Greeting) -> Step:
        match greeting:
            case Rejected():
                return _rejected("the driver", greeting)
            case Challenge(version, _) if version != PROTOCOL_VERSION:
                return _fail(Reason.VERSION, _other_version("the client", "the driver", version))
            case Challenge(_, nonce) if len(nonce) == NONCE_BYTES and self._server_nonce is None:
                self._server_nonce = nonce
                proof = self._proof(_CLIENT, nonce, self._nonce)
                return Proceed(encode(Response(PROTOCOL_VERSION, self._nonce, proof)), is_done=False)
            case Proof(proof) if self._server_nonce is not None:
                if not hmac.compare_digest(proof, self._proof(_DRIVER, self._server_nonce, self._nonce)):
                    return _fail(Reason.SECRET, "the driver does not know this generation's secret")
                return Proceed(b"", is_done=True)
            case _:
                return _fail(Reason.MALFORMED, f"{type(greeting).__name__} is not well-formed or not expected now")


def _fail(reason: Reason, why: str) -> Failed:
    # Shortened: the other side accepts no more than GREETING_FRAME_BYTES from us.
    return Failed(reason, why, encode(Rejected(reason.value, why[:200])))


def _rejected(who: str, rejected: Rejected) -> Failed:
    reason = Reason.VERSION if rejected.reason == Reason.VERSION.value else Reason.REJECTED
    return Failed(reason, f"{who} rejected the handshake: {rejected.why!r}")


def _other_version(own: str, other: str, version: int) -> str:
    return (
        f"{other} speaks protocol version {version}, {own} version {PROTOCOL_VERSION}; install the same release of "
        "coord_control for the driver and the executors"
    )
