"""Idempotent producers."""

from __future__ import annotations

from tests.conformance.client_suite import JSON, OCTETS, TEXT, Stage, check, scenario


@scenario
def messages_come_in_their_order(stage: Stage) -> None:
    path = stage.create(TEXT)
    for number, word in enumerate(("a", "b", "c")):
        check(stage.produce(path, word), status=200, producerSeq=number)
    check(stage.read(path), data="abc", upToDate=True)


@scenario
def the_offset_is_where_the_stream_ends(stage: Stage) -> None:
    path = stage.create(TEXT)
    end = check(stage.produce(path, "x"))["offset"]
    check(stage.read(path, offset=end), chunks=0, upToDate=True)


@scenario
def a_batch_is_one_request(stage: Stage) -> None:
    path = stage.create(TEXT)
    check(stage.produce_many(path, ["Hello", " ", "World"]), status=200, producerSeq=0)
    check(stage.read(path), data="Hello World", upToDate=True)


@scenario
def json_messages_stay_apart(stage: Stage) -> None:
    path = stage.create(JSON)
    check(stage.produce(path, '{"n": 0}', "single"))
    items = ['{"n": 1}', "[2, 3]", "4", '"five"', "null", "true"]
    check(stage.produce_many(path, items), status=200)
    check(stage.read(path), data='[{"n":0},{"n":1},[2,3],4,"five",null,true]')


def _many(stage: Stage, content_type: str, *, claim: bool) -> None:
    path = stage.create(content_type)
    items = [f'{{"n":{number}}}' for number in range(25)]
    result = stage.produce_many(path, items, maxInFlight=5, autoClaim=claim)
    check(result, status=200, producerSeq=24)
    wanted = f"[{','.join(items)}]" if content_type == JSON else "".join(items)
    check(stage.read(path), data=wanted, upToDate=True)


@scenario
def batches_in_flight_keep_their_order(stage: Stage) -> None:
    for content_type in (TEXT, JSON, OCTETS):
        _many(stage, content_type, claim=False)


@scenario
def batches_in_flight_wait_for_a_claim(stage: Stage) -> None:
    for content_type in (TEXT, JSON):
        _many(stage, content_type, claim=True)


@scenario
def producers_are_independent(stage: Stage) -> None:
    path = stage.create(TEXT)
    for number, word in enumerate(("a", "b", "c")):
        check(stage.produce(path, word, "one"), producerSeq=number)
        check(stage.produce(path, word.upper(), "two"), producerSeq=number)
    check(stage.read(path), data="aAbBcC")


@scenario
def ids_may_have_any_usual_form(stage: Stage) -> None:
    path = stage.create(TEXT)
    ids = ("a-b_c", "com.example.1", "a:b:c", "a/b/c", "550e8400-e29b-41d4-a716-446655440000")
    for id in (*ids, "long" * 40):
        check(stage.produce(path, ".", id), status=200)
    check(stage.read(path), data="." * 6)


@scenario
def a_stale_epoch_is_refused(stage: Stage) -> None:
    path = stage.create(TEXT)
    stage.server_append(path, "newer", ("p", 5, 0))
    check(stage.produce(path, "zombie"), error="UNEXPECTED_STATUS", status=403)
    check(stage.produce_many(path, ["zombie"]), error="UNEXPECTED_STATUS", status=403)
    check(stage.read(path), data="newer")


@scenario
def a_stale_epoch_is_claimed_if_wished(stage: Stage) -> None:
    path = stage.create(TEXT)
    stage.server_append(path, "theirs,", ("p", 5, 0))
    check(stage.produce(path, "ours,", autoClaim=True), status=200)
    check(stage.produce(path, "still ours", autoClaim=True), status=200)
    check(stage.read(path), data="theirs,ours,still ours")
    path = stage.create(TEXT)
    stage.server_append(path, "theirs,", ("p", 3, 0))
    check(stage.produce_many(path, ["1", "2", "3"], autoClaim=True), status=200)
    check(stage.read(path), data="theirs,123")


@scenario
def an_epoch_that_was_used_before_is_claimed(stage: Stage) -> None:
    path = stage.create(TEXT)
    stage.server_append(path, "an earlier run,", ("p", 0, 0))
    check(stage.produce(path, "this run", autoClaim=True), status=200)
    check(stage.read(path), data="an earlier run,this run")


@scenario
def a_repeated_batch_is_stored_once(stage: Stage) -> None:
    path = stage.create(JSON)
    check(stage.produce_many(path, ["1", "2", "3"]), status=200, duplicate=None)
    check(stage.produce_many(path, ["1", "2", "3"]), status=200, duplicate=True)
    check(stage.produce(path, "1"), status=200, duplicate=True)
    check(stage.read(path), data="[1,2,3]")


@scenario
def a_higher_epoch_begins_again(stage: Stage) -> None:
    path = stage.create(TEXT)
    check(stage.produce(path, "a", epoch=1), producerSeq=0)
    check(stage.produce(path, "b", epoch=1), producerSeq=1)
    check(stage.produce(path, "c", epoch=7), producerSeq=0)
    check(stage.produce(path, "x", epoch=1), status=403, error="UNEXPECTED_STATUS")
    check(stage.read(path), data="abc")


@scenario
def single_appends_carry_producer_headers(stage: Stage) -> None:
    path = stage.create(TEXT)

    def append(data: str, epoch: int, seq: int) -> dict[str, object]:
        return stage.ask(
            "append", path, data=data, producerId="p", producerEpoch=epoch, producerSeq=seq
        )

    check(append("a", 0, 0), status=200, duplicate=False, producerEpoch=0, producerSeq=0)
    check(append("b", 0, 1), status=200, duplicate=False, producerSeq=1)
    check(append("other", 0, 0), status=204, duplicate=True)
    gap = check(append("d", 0, 3), error="SEQUENCE_CONFLICT", status=409)
    assert gap["details"]["producerExpectedSeq"] == 2
    assert gap["details"]["producerReceivedSeq"] == 3
    check(append("c", 0, 2), status=200)
    check(append("e", 1, 0), status=200, producerEpoch=1)
    fenced = check(append("x", 0, 3), error="UNEXPECTED_STATUS", status=403)
    assert fenced["details"]["producerEpoch"] == 1
    assert append("x", 2, 5)["status"] == 400
    check(stage.read(path), data="abce")


@scenario
def large_numbers_are_no_matter(stage: Stage) -> None:
    path = stage.create(TEXT)
    check(stage.produce(path, "a", epoch=2_147_483_640), status=200)
    check(stage.produce(path, "b", epoch=9_007_199_254_740_991), status=200)
    check(stage.read(path), data="ab")


# -- closing and leaving


@scenario
def a_producer_closes_the_stream(stage: Stage) -> None:
    path = stage.create(TEXT)
    end = check(stage.produce(path, "one"))["offset"]
    check(stage.produce_close(path), status=200, finalOffset=end)
    check(stage.ask("head", path), streamClosed=True)
    check(stage.read(path), data="one", streamClosed=True)


@scenario
def a_producer_closes_with_a_last_message(stage: Stage) -> None:
    path = stage.create(JSON)
    check(stage.produce(path, "1"))
    end = check(stage.produce_close(path, data="[2]"), status=200)["finalOffset"]
    check(stage.read(path), data="[1,[2]]", streamClosed=True, offset=end)


@scenario
def a_producer_closes_as_often_as_it_likes(stage: Stage) -> None:
    path = stage.create(TEXT)
    end = check(stage.produce_close(path, data="A"), status=200)["finalOffset"]
    check(stage.produce_close(path, data="A"), status=200, finalOffset=end)
    check(stage.produce_close(path, data="B"), status=200, finalOffset=end)
    check(stage.read(path), data="A", streamClosed=True)


@scenario
def another_producer_finds_it_closed(stage: Stage) -> None:
    path = stage.create(TEXT)
    check(stage.produce(path, "x", "one"))
    check(stage.produce_close(path, "one"), status=200)
    result = stage.produce_close(path, "two")
    check(result, error="STREAM_CLOSED", status=409, commandType="idempotent-close")
    check(stage.ask("head", path), streamClosed=True)


@scenario
def a_producer_that_leaves_does_not_close(stage: Stage) -> None:
    path = stage.create(TEXT)
    check(stage.produce(path, "one,"))
    detach = {"producerId": "p", "epoch": 0}
    check(stage.ask("idempotent-detach", path, **detach), status=200)
    check(stage.ask("idempotent-detach", path, **detach), status=200)
    check(stage.ask("head", path), streamClosed=False)
    stage.append(path, "two")
    check(stage.read(path), data="one,two", streamClosed=False)
