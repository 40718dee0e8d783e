from __future__ import annotations

import pytest

from coord_control.errors import InvalidTransition
from coord_control.ids import Generation
from coord_control.spark.wire import frame_codec
from coord_control.spark.wire.handshake import (
    NONCE_BYTES,
    SECRET_BYTES,
    ClientHandshake,
    Failed,
    Proceed,
    Reason,
    ServerHandshake,
    Step,
)

SECRET, OTHER_SECRET = b"s" * SECRET_BYTES, b"t" * SECRET_BYTES
GENERATION = Generation(7)


def server(nonce: bytes = b"1" * NONCE_BYTES, secret: bytes = SECRET) -> ServerHandshake:
    return ServerHandshake(secret, GENERATION, nonce)


def client(secret: bytes = SECRET, generation: Generation = GENERATION) -> ClientHandshake:
    return ClientHandshake(secret, generation, b"2" * NONCE_BYTES)


def give(to: ServerHandshake | ClientHandshake, frame: bytes) -> Step:
    ((kind, body),) = frame_codec.FrameReader().frames(memoryview(frame))
    return to.receive(kind, body)


def proceed(step: Step) -> bytes:
    assert isinstance(step, Proceed)
    return step.frame


def failed(step: Step) -> Failed:
    assert isinstance(step, Failed)
    return step


def rejected(step: Failed) -> frame_codec.Rejected:
    ((kind, body),) = frame_codec.FrameReader().frames(memoryview(step.frame))
    greeting = frame_codec.decode_greeting(kind, body)
    assert isinstance(greeting, frame_codec.Rejected)
    return greeting


def test_two_sides_with_one_secret_authenticate_each_other() -> None:
    driver, worker = server(), client()
    response = give(worker, driver.challenge())
    proof = give(driver, proceed(response))
    end = give(worker, proceed(proof))
    assert [step.is_done for step in (response, proof, end) if isinstance(step, Proceed)] == [False, True, True]
    assert proceed(end) == b""


def test_the_secret_never_travels() -> None:
    driver, worker = server(), client()
    challenge = driver.challenge()
    response = proceed(give(worker, challenge))
    proof = proceed(give(driver, response))
    assert SECRET not in challenge + response + proof


@pytest.mark.parametrize("worker", [client(secret=OTHER_SECRET), client(generation=Generation(6))])
def test_the_driver_refuses_another_secret_or_generation(worker: ClientHandshake) -> None:
    driver = server()
    step = failed(give(driver, proceed(give(worker, driver.challenge()))))
    assert step.reason is Reason.SECRET
    seen_by_client = failed(give(worker, step.frame))
    assert seen_by_client.reason is Reason.REJECTED
    assert "secret is not the one of this driver's generation" in seen_by_client.why


def test_the_client_refuses_a_driver_that_cannot_prove_the_secret() -> None:
    worker = client()
    proceed(give(worker, server().challenge()))
    step = failed(give(worker, frame_codec.encode(frame_codec.Proof(b"x" * 32))))
    assert step.reason is Reason.SECRET
    assert "driver does not know" in step.why


def test_a_recorded_response_is_worth_nothing_on_another_connection() -> None:
    recorded = proceed(give(client(), server(nonce=b"1" * NONCE_BYTES).challenge()))
    assert failed(give(server(nonce=b"9" * NONCE_BYTES), recorded)).reason is Reason.SECRET


def test_a_recorded_driver_cannot_be_replayed_to_a_client() -> None:
    driver, victim = server(), client()
    challenge = driver.challenge()
    proof = proceed(give(driver, proceed(give(victim, challenge))))
    later = ClientHandshake(SECRET, GENERATION, b"3" * NONCE_BYTES)
    proceed(give(later, challenge))
    assert failed(give(later, proof)).reason is Reason.SECRET


def test_a_proof_cannot_be_sent_back_to_its_maker() -> None:
    worker = client()
    response = proceed(give(worker, server().challenge()))
    ((kind, body),) = frame_codec.FrameReader().frames(memoryview(response))
    own = frame_codec.decode_greeting(kind, body)
    assert isinstance(own, frame_codec.Response)
    assert failed(give(worker, frame_codec.encode(frame_codec.Proof(own.proof)))).reason is Reason.SECRET


@pytest.mark.parametrize("nonce", [b"", b"n" * 31, b"n" * 33])
def test_nonces_have_one_length(nonce: bytes) -> None:
    assert (
        failed(give(client(), frame_codec.encode(frame_codec.Challenge(frame_codec.PROTOCOL_VERSION, nonce)))).reason
        is Reason.MALFORMED
    )
    assert (
        failed(
            give(server(), frame_codec.encode(frame_codec.Response(frame_codec.PROTOCOL_VERSION, nonce, b"p" * 32)))
        ).reason
        is Reason.MALFORMED
    )


def test_a_client_names_both_versions_and_tells_the_driver() -> None:
    step = failed(give(client(), frame_codec.encode(frame_codec.Challenge(3, b"n" * 32))))
    assert step.reason is Reason.VERSION
    assert "the driver speaks protocol version 3, the client version 2" in step.why
    at_driver = failed(give(server(), step.frame))
    assert at_driver.reason is Reason.VERSION
    assert "the driver speaks protocol version 3" in at_driver.why


def test_a_driver_names_both_versions_and_tells_the_client() -> None:
    step = failed(give(server(), frame_codec.encode(frame_codec.Response(3, b"n" * 32, b"p" * 32))))
    assert step.reason is Reason.VERSION
    worker = client()
    proceed(give(worker, server().challenge()))
    at_client = failed(give(worker, step.frame))
    assert at_client.reason is Reason.VERSION
    assert "the client speaks protocol version 3, the driver version 2" in at_client.why


def test_the_version_is_read_even_when_nothing_else_is_as_today() -> None:
    body = b"\x82\xa7version\x09\xa5other\x91\x01"
    assert failed(client().receive(frame_codec.Kind.CHALLENGE, body)).reason is Reason.VERSION
    assert failed(server().receive(frame_codec.Kind.RESPONSE, body)).reason is Reason.VERSION


@pytest.mark.parametrize(
    "greeting",
    [frame_codec.Proof(b"p" * 32), frame_codec.Challenge(2, b"n" * 32), frame_codec.Response(2, b"n" * 32, b"p")],
)
def test_frames_at_the_wrong_moment_fail(greeting: frame_codec.Greeting) -> None:
    step = failed(give(server(), frame_codec.encode(greeting)))
    assert step.reason is (Reason.SECRET if isinstance(greeting, frame_codec.Response) else Reason.MALFORMED)
    assert rejected(step).reason == step.reason.value
    if not isinstance(greeting, frame_codec.Challenge):
        assert failed(give(client(), frame_codec.encode(greeting))).reason is Reason.MALFORMED


def test_a_second_challenge_fails() -> None:
    worker = client()
    proceed(give(worker, server().challenge()))
    assert failed(give(worker, server().challenge())).reason is Reason.MALFORMED


def test_the_last_words_fit_the_limit_of_the_other_side() -> None:
    step = failed(server().receive(200, b"\xff" * 1000))
    assert len(step.frame) < frame_codec.GREETING_FRAME_BYTES
    assert rejected(step).reason == "malformed"


def test_nothing_is_received_after_the_end() -> None:
    driver = server()
    failed(driver.receive(frame_codec.Kind.HELLO, b""))
    with pytest.raises(InvalidTransition, match="handshake"):
        driver.receive(frame_codec.Kind.RESPONSE, b"")


def test_a_secret_of_another_length_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        ServerHandshake(b"short", GENERATION, b"n" * NONCE_BYTES)
