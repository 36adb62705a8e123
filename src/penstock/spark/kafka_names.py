"""Options of Spark's Kafka source and sink that have another name here, or no meaning: what to
write instead, for the error of an unknown option. docs/spark.md has the whole table."""

from __future__ import annotations

from typing import Final

_STREAMS: Final = "name streams, or patterns such as shop/**, in the option streams"
_NO_GROUP: Final = "a query keeps its offsets in its checkpoint, and the server has no groups"
_SHARED: Final = "the tasks of a process share their connections, which needs no setting"
_ATTEMPTS: Final = "set maxAttempts and retryInterval"

_NO_FORMAT: Final = "values are JSON or bytes, which needs no class"

_INSTEAD: Final = {
    "subscribe": _STREAMS,
    "subscribepattern": _STREAMS,
    "assign": "a stream has no partitions: name it in the option streams",
    "topic": "name the target in the option stream, or in a column stream",
    "partition": "a stream has no partitions",
    "includeheaders": "the sink writes a column headers, if there is one",
    "groupidprefix": _NO_GROUP,
    "kafka.group.id": _NO_GROUP,
    "kafka.auto.offset.reset": "set startingOffsets",
    "kafka.enable.auto.commit": _NO_GROUP,
    "kafka.key.deserializer": _NO_FORMAT,
    "kafka.value.deserializer": _NO_FORMAT,
    "kafka.key.serializer": _NO_FORMAT,
    "kafka.value.serializer": _NO_FORMAT,
    "kafka.max.poll.records": "set maxMessagesPerTrigger, or maxRecordsPerPartition for a task",
    "kafka.acks": "an append is answered when it is durable",
    "kafka.enable.idempotence": "the sink always has a producer, and repeats are stored once",
    "kafka.transactional.id": "set txnAppId and txnVersion for a batch write",
    "kafka.batch.size": "set chunkMessages and chunkBytes",
    "kafka.linger.ms": "set chunkMessages and chunkBytes",
    "kafka.max.request.size": "set chunkBytes, and body_bytes_max of the server",
    "kafka.retries": "set maxAttempts",
    "kafka.compression.type": "the server compresses answers, and stores what is sent",
    "kafka.bootstrap.servers": "set url",
    "kafka.isolation.level": "nobody sees a message before it is committed",
    "fetchoffset.numretries": _ATTEMPTS,
    "fetchoffset.retryintervalms": _ATTEMPTS,
    "kafkaconsumer.polltimeoutms": "set requestTimeout",
    "kafka.request.timeout.ms": "set requestTimeout",
}


_SECURITY: Final = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")


def instead_of(name: str) -> str | None:
    """What stands for an option of Kafka's; None if the name is not one."""
    known = _INSTEAD.get(name.lower())
    if known is None and name.lower().startswith(_SECURITY):
        known = "set token, and an https:// url"
    if known is None and name.lower().startswith("kafka."):
        known = "options of Kafka's own client have no meaning here"
    if known is None and ("consumercache" in name.lower() or "producercache" in name.lower()):
        known = _SHARED
    return known
