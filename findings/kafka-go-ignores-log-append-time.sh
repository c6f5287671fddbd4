#!/bin/sh
# segmentio/kafka-go 0.4.51 gives the producer's time where the broker's time counts.
#
# A topic with message.timestamp.type=LogAppendTime has bit 3 of a batch's attributes set. The broker
# writes its clock into the batch's maxTimestamp and leaves the records' deltas as the producer sent
# them; the time of each record is then maxTimestamp (Apache Kafka 4.4.0, DefaultRecordBatch). The
# decoder of kafka-go adds baseTimestamp and delta for such batches, too, and gives no sign of it: the
# attribute is in Attributes, and maxTimestamp is read and dropped. Times of one topic then differ
# between readers in Go and in Java, and a search by time finds other records.
#
# Expected output:
#   kafka-clients 4.4.0: LogAppendTime 1700000900000 1700000900000
#   kafka-go 0.4.51: 1700000000000 1700000000007
#
# Needs a JDK (17 or later), Maven and Go; installs into a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
cd "$folder"

cat > pom.xml <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>probe</groupId><artifactId>probe</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-clients</artifactId><version>4.4.0</version>
    </dependency>
  </dependencies>
</project>
POM
mvn --batch-mode --quiet -Dstyle.color=never dependency:copy-dependencies -DoutputDirectory=jars

cat > Batch.java <<'JAVA'
import java.nio.ByteBuffer;
import java.nio.file.*;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.*;

class Batch {
    public static void main(String[] words) throws Exception {
        var builder = MemoryRecords.builder(ByteBuffer.allocate(512), RecordBatch.MAGIC_VALUE_V2,
            Compression.NONE, TimestampType.LOG_APPEND_TIME, 0L, 1700000900000L);
        builder.append(1700000000000L, "a".getBytes(), "1".getBytes());
        builder.append(1700000000007L, "b".getBytes(), "2".getBytes());
        var batch = builder.build();
        var bytes = new byte[batch.sizeInBytes()];
        batch.buffer().duplicate().get(bytes);
        Files.write(Path.of("batch"), bytes);
        var line = new StringBuilder("kafka-clients 4.4.0:");
        line.append(" ").append(batch.batches().iterator().next().timestampType());
        for (var record : batch.records()) line.append(" ").append(record.timestamp());
        System.out.println(line);
    }
}
JAVA
java -cp 'jars/*' Batch.java 2> java.log > seen || { cat java.log >&2; exit 1; }

mkdir go && cd go
export GOFLAGS=-mod=mod GOPATH="$folder/gopath" GOCACHE="$folder/gocache"
cat > go.mod <<'MOD'
module probe

go 1.23

require github.com/segmentio/kafka-go v0.4.51
MOD
cat > main.go <<'GO'
package main

import (
	"encoding/binary"
	"bytes"
	"fmt"
	"os"

	"github.com/segmentio/kafka-go/protocol"
)

func main() {
	batch, err := os.ReadFile("../batch")
	if err != nil {
		panic(err)
	}
	// A record set is preceded by its size, as in a response of Fetch.
	sized := binary.BigEndian.AppendUint32(nil, uint32(len(batch)))
	var set protocol.RecordSet
	if _, err := set.ReadFrom(bytes.NewReader(append(sized, batch...))); err != nil {
		panic(err)
	}
	fmt.Print("kafka-go 0.4.51:")
	for {
		record, err := set.Records.ReadRecord()
		if err != nil {
			break
		}
		fmt.Printf(" %d", record.Time.UnixMilli())
	}
	fmt.Println()
}
GO
go run . >> ../seen
cd ..
cat > wanted <<'WANTED'
kafka-clients 4.4.0: LogAppendTime 1700000900000 1700000900000
kafka-go 0.4.51: 1700000000000 1700000000007
WANTED
cat seen
diff wanted seen
