#!/bin/sh
# Apache Avro 1.12.1 for Java takes a time or decimal of an evolved schema for another value; Avro's own
# Python library and fastavro do not.
#
# A producer's schema says timestamp-millis, its newest version timestamp-micros: both are a long, so
# the schemas resolve. Java's GenericDatumReader applies the logical type of the reader's schema to the
# writer's number: a moment of 2026 becomes one of 1970, and the other way round one of the year 58884.
# A decimal of scale 2 that is read with scale 3 is a tenth. No error, no warning. The specification
# resolves two decimals only if scale and precision are equal. avro 1.12.1 for Python and fastavro
# 1.12.1 apply the writer's logical type, and so keep moment and amount. One topic then has two
# contents, by the language of whoever reads it with the newest schema.
#
# Expected output:
#   Java, avro 1.12.1
#   millis read as micros: 1970-01-21T18:53:52.800Z
#   micros read as millis: +58884-01-05T16:00:00Z
#   12.34 of scale 2 read with scale 3: 1.234
#   Python, avro 1.12.1 and fastavro 1.12.1
#   millis read as micros: 2026-11-30T10:00:00+00:00 2026-11-30T10:00:00+00:00
#   micros read as millis: 2026-11-30T10:00:00+00:00 2026-11-30T10:00:00+00:00
#   12.34 of scale 2 read with scale 3: 12.34 12.34
#
# Needs a JDK (17 or later), Maven and Python 3.11 or later; installs into a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

cat > pom.xml <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>probe</groupId><artifactId>probe</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.avro</groupId><artifactId>avro</artifactId><version>1.12.1</version>
    </dependency>
  </dependencies>
</project>
POM
mvn --batch-mode --quiet -Dstyle.color=never dependency:copy-dependencies -DoutputDirectory=jars

cat > Probe.java <<'JAVA'
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import org.apache.avro.Conversions;
import org.apache.avro.Schema;
import org.apache.avro.data.TimeConversions;
import org.apache.avro.generic.*;
import org.apache.avro.io.*;

class Probe {
    static final String LONG = "{\"type\": \"long\", \"logicalType\": \"timestamp-%s\"}";
    static final String DECIMAL =
        "{\"type\": \"bytes\", \"logicalType\": \"decimal\", \"precision\": 6, \"scale\": %s}";

    static Object read(String form, String written, String asked, Object value) throws Exception {
        var writer = new Schema.Parser().parse(String.format(form, written));
        var reader = new Schema.Parser().parse(String.format(form, asked));
        var bytes = new ByteArrayOutputStream();
        var encoder = EncoderFactory.get().binaryEncoder(bytes, null);
        new GenericDatumWriter<Object>(writer).write(value, encoder);
        encoder.flush();
        var data = new GenericData();
        data.addLogicalTypeConversion(new TimeConversions.TimestampMillisConversion());
        data.addLogicalTypeConversion(new TimeConversions.TimestampMicrosConversion());
        data.addLogicalTypeConversion(new Conversions.DecimalConversion());
        var decoder = DecoderFactory.get().binaryDecoder(bytes.toByteArray(), null);
        return new GenericDatumReader<Object>(writer, reader, data).read(null, decoder);
    }

    public static void main(String[] words) throws Exception {
        System.out.println("Java, avro 1.12.1");
        System.out.println("millis read as micros: " + read(LONG, "millis", "micros", 1796032800000L));
        System.out.println("micros read as millis: " + read(LONG, "micros", "millis", 1796032800000000L));
        System.out.println("12.34 of scale 2 read with scale 3: "
            + read(DECIMAL, "2", "3", ByteBuffer.wrap(new byte[] {4, (byte) 0xd2})));
    }
}
JAVA
java -cp 'jars/*' Probe.java > found.txt 2> java.log || { cat java.log >&2; exit 1; }

python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check avro==1.12.1 fastavro==1.12.1
cat > probe.py <<'PY'
import io
import json
from datetime import datetime, timezone
from decimal import Decimal

import avro.io
import avro.schema
import fastavro


def both(written, asked, value):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(written), value)
    schemas = (avro.schema.parse(json.dumps(each)) for each in (written, asked))
    decoder = avro.io.BinaryDecoder(io.BytesIO(stream.getvalue()))
    stream.seek(0)
    return (
        avro.io.DatumReader(*schemas).read(decoder),
        fastavro.schemaless_reader(stream, fastavro.parse_schema(written), fastavro.parse_schema(asked)),
    )


millis, micros = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))
two, three = ({"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": s} for s in (2, 3))
moment = datetime(2026, 11, 30, 10, tzinfo=timezone.utc)
print("Python, avro 1.12.1 and fastavro 1.12.1")
print("millis read as micros:", *(each.isoformat() for each in both(millis, micros, moment)))
print("micros read as millis:", *(each.isoformat() for each in both(micros, millis, moment)))
print("12.34 of scale 2 read with scale 3:", *both(two, three, Decimal("12.34")))
PY
python/bin/python probe.py >> found.txt
cat found.txt

cat > expected.txt <<'TXT'
Java, avro 1.12.1
millis read as micros: 1970-01-21T18:53:52.800Z
micros read as millis: +58884-01-05T16:00:00Z
12.34 of scale 2 read with scale 3: 1.234
Python, avro 1.12.1 and fastavro 1.12.1
millis read as micros: 2026-11-30T10:00:00+00:00 2026-11-30T10:00:00+00:00
micros read as millis: 2026-11-30T10:00:00+00:00 2026-11-30T10:00:00+00:00
12.34 of scale 2 read with scale 3: 12.34 12.34
TXT
diff expected.txt found.txt
