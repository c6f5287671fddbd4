#!/bin/sh
# confluent-kafka 2.16.1 for Python: AvroSerializer refuses a Schema object whose schema is the name of
# a primitive type, which it takes as a text.
#
# A registry keeps the schema of a key that is a number as the JSON text "long", as Java's serializer
# registers it. SchemaRegistryClient gives it back as a Schema object. AvroSerializer documents that
# its schema is a text or a Schema. With the text "long" it serializes 7; with the Schema object of
# that very text its constructor ends with an AttributeError, since it asks the parsed schema, a str,
# for a field. The same type as an object, {"type": "long"}, works both ways. AvroDeserializer reads
# the value by either. So a program that takes a topic's key schema from the registry and hands it to
# the serializer fails for keys that Java wrote, and works for those that Python registered.
#
# Expected output:
#   confluent-kafka 2.16.1
#   "long" as text: 7 becomes 00000000..0e and comes back as 7
#   "long" as Schema: AttributeError 'str' object has no attribute 'get'
#   {"type": "long"} as text: 7 becomes 00000000..0e and comes back as 7
#   {"type": "long"} as Schema: 7 becomes 00000000..0e and comes back as 7
#
# Needs Python 3.11 or later; installs into a temporary folder. Half a minute. No server is started.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check "confluent-kafka[avro]==2.16.1"

cat > probe.py <<'PY'
import confluent_kafka
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

print("confluent-kafka", confluent_kafka.__version__)
registry = SchemaRegistryClient.new_client({"url": "mock://here"})
place = SerializationContext("orders", MessageField.KEY)
for text in ('"long"', '{"type": "long"}'):
    for kind, schema in (("text", text), ("Schema", Schema(text, "AVRO", []))):
        try:
            data = AvroSerializer(registry, schema)(7, place)
        except Exception as error:
            print(f"{text} as {kind}: {type(error).__name__} {error}")
            continue
        back = AvroDeserializer(registry)(data, place)
        # The number of the schema, byte 5, is the registry's to choose.
        print(f"{text} as {kind}: 7 becomes {data[:4].hex()}..{data[5:].hex()} and comes back as {back}")
PY
python/bin/python probe.py > found.txt
cat found.txt

cat > expected.txt <<'TXT'
confluent-kafka 2.16.1
"long" as text: 7 becomes 00000000..0e and comes back as 7
"long" as Schema: AttributeError 'str' object has no attribute 'get'
{"type": "long"} as text: 7 becomes 00000000..0e and comes back as 7
{"type": "long"} as Schema: 7 becomes 00000000..0e and comes back as 7
TXT
diff expected.txt found.txt
