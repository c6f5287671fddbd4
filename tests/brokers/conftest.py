"""Every test here starts a broker; its clients are in the JVM of this process."""

from tests.oracle.fixtures import kafka_jvm

__all__ = ["kafka_jvm"]
