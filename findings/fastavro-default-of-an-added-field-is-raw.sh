#!/bin/sh
# fastavro 1.12.1 gives the default of a field that the writer lacked as it stands in the schema's JSON,
# not as a value of the field's type.
#
# A field was added to a schema with a default, as evolution asks for; older records are read with the
# newer schema. A record that has the field gives Decimal("0.01"), a date, bytes, a nested record with
# its fields. One that lacks it gives the JSON of the default: a str for a decimal and for bytes, an int
# for a date, and an empty dict for a nested record whose fields have defaults of their own. So one
# column has two types, by the age of the record. The specification says what a default means: text of
# the code points 0 to 255 is bytes, and fields that are not named take their own defaults. avro 1.12.1
# for Java gives bytes, and the nested record with its field.
#
# Expected output:
#   fastavro 1.12.1
#   decimal: has it Decimal('0.01'), lacks it '\x01'
#   date: has it datetime.date(1970, 1, 4), lacks it 3
#   bytes: has it b'\xff\x01', lacks it '\xff\x01'
#   record: has it {'x': 4}, lacks it {}
#   avro 1.12.1 for Java
#   bytes: ff01
#   record: {"x": 4}
#
# Needs a JDK (17 or later), Maven and Python 3.11 or later; installs into a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check fastavro==1.12.1

cat > probe.py <<'PY'
import io
from datetime import date
from decimal import Decimal

import fastavro


def read(written, asked, value):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, written, value)
    stream.seek(0)
    return fastavro.schemaless_reader(stream, written, asked)


print("fastavro", fastavro.__version__)
older = fastavro.parse_schema({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})
nested = {"type": "record", "name": "N", "fields": [{"name": "x", "type": "int", "default": 4}]}
decimal = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
for name, kind, default, value in (
    ("decimal", decimal, "\x01", Decimal("0.01")),
    ("date", {"type": "int", "logicalType": "date"}, 3, date(1970, 1, 4)),
    ("bytes", "bytes", "\xff\x01", b"\xff\x01"),
    ("record", nested, {}, {"x": 4}),
):
    added = {"name": "b", "type": kind, "default": default}
    newer = fastavro.parse_schema(
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, added]}
    )
    has = read(newer, newer, {"a": 1, "b": value})["b"]
    lacks = read(older, newer, {"a": 1})["b"]
    print(f"{name}: has it {ascii(has)}, lacks it {ascii(lacks)}")
PY
python/bin/python probe.py > found.txt

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
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.avro.Schema;
import org.apache.avro.generic.*;
import org.apache.avro.io.*;

class Probe {
    static Object lacking(String kind, String value) throws Exception {
        var older = "{\"type\": \"record\", \"name\": \"R\", \"fields\": [{\"name\": \"a\", \"type\": \"int\"}";
        var added = ", {\"name\": \"b\", \"type\": " + kind + ", \"default\": " + value + "}";
        var writer = new Schema.Parser().parse(older + "]}");
        var reader = new Schema.Parser().parse(older + added + "]}");
        var decoder = DecoderFactory.get().binaryDecoder(new byte[] {2}, null); // a = 1
        return new GenericDatumReader<GenericRecord>(writer, reader).read(null, decoder).get("b");
    }

    public static void main(String[] words) throws Exception {
        System.out.println("avro 1.12.1 for Java");
        var bytes = (ByteBuffer) lacking("\"bytes\"", "\"\\u00ff\\u0001\"");
        System.out.println("bytes: " + HexFormat.of().formatHex(bytes.array()));
        System.out.println("record: " + lacking("{\"type\": \"record\", \"name\": \"N\", \"fields\": "
            + "[{\"name\": \"x\", \"type\": \"int\", \"default\": 4}]}", "{}"));
    }
}
JAVA
java -cp 'jars/*' Probe.java >> found.txt 2> java.log || { cat java.log >&2; exit 1; }
cat found.txt

cat > expected.txt <<'TXT'
fastavro 1.12.1
decimal: has it Decimal('0.01'), lacks it '\x01'
date: has it datetime.date(1970, 1, 4), lacks it 3
bytes: has it b'\xff\x01', lacks it '\xff\x01'
record: has it {'x': 4}, lacks it {}
avro 1.12.1 for Java
bytes: ff01
record: {"x": 4}
TXT
diff expected.txt found.txt
