"""TLS between subtasks and the driver, with a certificate that lives as long as one generation of the driver.

There is no authority and no host name to check: the driver makes a key and a self-signed certificate when it starts,
the certificate travels to the workers inside the task closure, and a client accepts exactly that one. The pin is the
trust, so the certificate has no expiry that a wrong clock on an executor could trip over.

The driver's side is a :class:`ServerTls` per connection that only turns bytes into bytes. asyncio's own TLS is not used
for two reasons: it allocates 256 KiB for every connection, and it hides a connection until its TLS handshake is over,
so that half-open ones could be neither counted nor limited. Thread rule: a context may be shared, a channel has one
owner.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

__all__ = ["Certificate", "ServerTls", "client_context", "make_certificate", "server_context"]

_SUBJECT: Final = "coord-control driver"
_FIRST_DAY: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NO_EXPIRY: Final = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)  # RFC 5280, 4.1.2.5


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, both as PEM; only ``pem`` may leave the driver."""

    pem: str
    key: bytes = field(repr=False)


def make_certificate() -> Certificate:
    """Make a new key (EC P-256) and a certificate for it, signed by itself."""
    # Imported here: workers use this module too, and need neither the time nor the library for it.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _SUBJECT)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FIRST_DAY)
        .not_valid_after(_NO_EXPIRY)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Certificate(
        certificate.public_bytes(serialization.Encoding.PEM).decode("ascii"),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """Return the driver's side of every connection of a generation."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Tickets would be unsolicited bytes: a client could not tell an idle connection from a broken one.
    context.num_tickets = 0
    # The ssl module reads keys from files only; the folder is readable for its owner alone and gone right after.
    with tempfile.TemporaryDirectory(prefix="coord-control-") as folder:
        chain = Path(folder, "driver.pem")
        chain.touch(mode=0o600)
        chain.write_bytes(certificate.key + certificate.pem.encode("ascii"))
        context.load_cert_chain(chain)
    return context


def client_context(pem: str) -> ssl.SSLContext:
    """Return a context that accepts the certificate ``pem`` and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate is pinned, the host's name proves nothing more
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=pem)
    return context


class ServerTls:
    """The driver's end of one TLS connection, as bytes in and bytes out."""

    __slots__ = ("_incoming", "_is_ready", "_outgoing", "_tls")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_ready = False

    @property
    def is_ready(self) -> bool:
        """Whether the TLS handshake is over and :meth:`encrypt` may be used."""
        return self._is_ready

    @property
    def held(self) -> int:
        """Bytes of an incomplete TLS record; one holds at most 16 KiB."""
        return self._incoming.pending

    def receive(self, data: memoryview, plain: memoryview) -> Iterator[int]:
        """Take bytes from the network; each number that it yields is how many bytes of ``plain`` were filled.

        Afterwards send :meth:`take`, also when it raised: it holds the alert that tells the other side why.

        Raises:
            ssl.SSLZeroReturnError: the other side has closed the connection in the orderly way.
            ssl.SSLError: these bytes are not TLS, or not acceptable. The connection cannot be used any further.
        """
        self._incoming.write(data)
        try:
            if not self._is_ready:
                self._tls.do_handshake()
                self._is_ready = True
            while size := self._read(plain):
                yield size
        except ssl.SSLWantReadError:
            return
        raise ssl.SSLZeroReturnError(ssl.SSL_ERROR_ZERO_RETURN, "closed by the other side")

    def _read(self, plain: memoryview) -> int:
        return cast("int", self._tls.read(len(plain), plain))  # with a buffer it returns a count; the stubs say bytes

    def encrypt(self, data: bytes) -> None:
        """Encrypt ``data``; :meth:`take` gives the result."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]

    def take(self) -> bytes:
        """Return what must be sent now."""
        return self._outgoing.read()
