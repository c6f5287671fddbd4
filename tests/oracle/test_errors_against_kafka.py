"""Kafka's own table of errors: numbers, names, and which exception has which."""

import pytest

from storage_core import errors
from storage_core.formats.error_codes import KafkaErrorCode
from tests.oracle.appends import KINDS
from tests.oracle.jvm import java

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

COMMON = "org.apache.kafka.common.errors."
# What Kafka throws where one of ours is raised; of appends, see KINDS as well.
EXCEPTIONS = {
    errors.CorruptRecordError: COMMON + "CorruptRecordException",
    errors.InvalidRecordError: "org.apache.kafka.common.InvalidRecordException",
    errors.OffsetOutOfRangeError: COMMON + "OffsetOutOfRangeException",
    errors.OffsetNotAvailableError: COMMON + "OffsetNotAvailableException",
    errors.PartitionNotFoundError: COMMON + "UnknownTopicOrPartitionException",
    errors.InvalidFetchSizeError: COMMON + "InvalidFetchSizeException",
    errors.RecordTooLargeError: COMMON + "RecordTooLargeException",
    errors.RecordBatchTooLargeError: COMMON + "RecordBatchTooLargeException",
    errors.InvalidNameError: COMMON + "InvalidTopicException",
    errors.InvalidTimestampError: COMMON + "InvalidTimestampException",
    errors.UnsupportedForMessageFormatError: COMMON + "UnsupportedForMessageFormatException",
    errors.UnsupportedCompressionError: COMMON + "UnsupportedCompressionTypeException",
    errors.OutOfOrderSequenceError: COMMON + "OutOfOrderSequenceException",
    errors.InvalidProducerEpochError: COMMON + "InvalidProducerEpochException",
    errors.ProducerTxnStateError: COMMON + "InvalidTxnStateException",
    errors.InvalidTxnStateError: COMMON + "InvalidTxnStateException",
    errors.TransactionCoordinatorFencedError: COMMON + "TransactionCoordinatorFencedException",
    errors.StorageError: COMMON + "KafkaStorageException",
    errors.LogClosedError: COMMON + "KafkaStorageException",
    errors.LogDirectoryNotFoundError: COMMON + "LogDirNotFoundException",
    errors.InconsistentTopicIdError: COMMON + "InconsistentTopicIdException",
    errors.InconsistentClusterIdError: COMMON + "InconsistentClusterIdException",
    errors.ConfigError: COMMON + "InvalidConfigurationException",
}
# Kafka throws these while it appends and answers the client with no error of their own.
WITHOUT_A_NUMBER = {
    "OffsetsOutOfOrderException": errors.OffsetsOutOfOrderError,
    "UnexpectedAppendOffsetException": errors.UnexpectedAppendOffsetError,
}


def table():
    return java("org.apache.kafka.common.protocol.Errors")


@pytest.mark.item("ERR-16")
def test_every_number_has_kafkas_name_and_no_other_is_there():
    theirs = {str(error.name()): int(error.code()) for error in table().values()}
    assert {code.name: code.value for code in KafkaErrorCode} == theirs


@pytest.mark.item("ERR-02", "ERR-04", "ERR-05", "ERR-08", "ERR-09", "ERR-10", "ERR-11")
@pytest.mark.parametrize("kind", EXCEPTIONS, ids=lambda kind: kind.__name__)
def test_an_error_has_the_number_of_the_exception_that_kafka_throws_there(kind):
    thrown = java(EXCEPTIONS[kind])("said")
    assert int(table().forException(thrown).code()) == kind.kafka_code


@pytest.mark.item("ERR-15")
@pytest.mark.parametrize("name", WITHOUT_A_NUMBER)
def test_what_has_no_number_in_kafka_has_none_here(name):
    """Kafka answers with its number for what it does not know."""
    (kind,) = KINDS[name]
    assert kind is WITHOUT_A_NUMBER[name]
    assert kind.kafka_code is None
    names = {str(error.exceptionName()).rpartition(".")[2] for error in table().values()}
    assert name not in names
