#!/bin/sh
# Apache Kafka 4.4.0, RemoteLogMetadataCache: a segment of tiered storage that is uploaded again from the
# same offset, in the same leader epoch, but not as far, hides the older segment from its epoch's list.
#
# The cache holds what a broker knows of the segments of a partition, from __remote_log_metadata. The
# list of a leader epoch, listRemoteLogSegments(epoch), is what retention walks. A later upload from
# the same offset takes the place of the older one for reads. If it reaches at least as far as all
# before it, the older one stays in its epoch's list, to be deleted one day. If the epoch had already
# reached further, it stays only in listAllRemoteLogSegments, though both uploads are
# COPY_SEGMENT_FINISHED and nobody has deleted either.
#
# Expected output:
#   kafka-storage 4.4.0
#   first 0-9, second 10-29, third 10-29: of the epoch 3 of 3, of all 3
#   first 0-9, second 10-29, third 10-19: of the epoch 2 of 3, of all 3; without second
#
# Needs Java 17 or later and Maven; installs into a temporary folder. A minute.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > pom.xml <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>probe</groupId>
  <artifactId>probe</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka-storage</artifactId>
      <version>4.4.0</version>
    </dependency>
  </dependencies>
</project>
XML
mvn --quiet --batch-mode dependency:copy-dependencies -DoutputDirectory=jars

# Its methods are for its own package.
package=org/apache/kafka/server/log/remote/metadata/storage
mkdir -p "$package"
cat > "$package/Probe.java" <<'JAVA'
package org.apache.kafka.server.log.remote.metadata.storage;

import java.util.Iterator;
import java.util.Map;
import java.util.Optional;
import java.util.TreeSet;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;

public class Probe {
    static final String[] NAMES = {"first", "second", "third"};

    static void run(long[][] uploads) throws Exception {
        RemoteLogMetadataCache cache = new RemoteLogMetadataCache();
        TopicIdPartition owner =
            new TopicIdPartition(new Uuid(0, 1), new TopicPartition("orders", 0));
        StringBuilder told = new StringBuilder();
        for (int number = 0; number < uploads.length; number++) {
            long start = uploads[number][0], end = uploads[number][1];
            RemoteLogSegmentId id = new RemoteLogSegmentId(owner, new Uuid(1, number + 1));
            cache.addCopyInProgressSegment(new RemoteLogSegmentMetadata(
                id, start, end, 0, 1, number, 1, Map.of(0, start)));
            cache.updateRemoteLogSegmentMetadata(new RemoteLogSegmentMetadataUpdate(
                id, number, Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 1));
            told.append(number == 0 ? "" : ", ").append(NAMES[number]).append(' ');
            told.append(start).append('-').append(end);
        }
        int all = 0;
        for (Iterator<?> each = cache.listAllRemoteLogSegments(); each.hasNext(); each.next()) {
            all++;
        }
        TreeSet<Long> ofEpoch = new TreeSet<>();
        for (Iterator<RemoteLogSegmentMetadata> each = cache.listRemoteLogSegments(0);
                each.hasNext(); ) {
            ofEpoch.add(each.next().remoteLogSegmentId().id().getLeastSignificantBits());
        }
        told.append(": of the epoch ").append(ofEpoch.size()).append(" of ");
        told.append(uploads.length).append(", of all ").append(all);
        for (long number = 1; number <= uploads.length; number++) {
            told.append(ofEpoch.contains(number) ? "" : "; without " + NAMES[(int) number - 1]);
        }
        System.out.println(told);
    }

    public static void main(String[] arguments) throws Exception {
        System.out.println("kafka-storage 4.4.0");
        run(new long[][] {{0, 9}, {10, 29}, {10, 29}});
        run(new long[][] {{0, 9}, {10, 29}, {10, 19}});
    }
}
JAVA
javac -cp 'jars/*' "$package/Probe.java"
java -cp '.:jars/*' org.apache.kafka.server.log.remote.metadata.storage.Probe > found.txt 2> errors.txt || { cat errors.txt >&2; exit 1; }
cat found.txt

cat > expected.txt <<'TXT'
kafka-storage 4.4.0
first 0-9, second 10-29, third 10-29: of the epoch 3 of 3, of all 3
first 0-9, second 10-29, third 10-19: of the epoch 2 of 3, of all 3; without second
TXT
diff expected.txt found.txt
