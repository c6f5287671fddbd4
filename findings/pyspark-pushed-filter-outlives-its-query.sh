#!/bin/sh
# PySpark 4.2.0: a filter that was pushed into a Python data source stays for later queries of the same
# DataFrame, which then lack rows.
#
# With spark.sql.python.filterPushdown.enabled, Spark calls pushFilters of the reader of a Python data
# source. A reader that narrows what it reads, and hands the filter back for Spark to apply as well, is
# what the API documents. df.where(...).count() is right. df.count() afterwards is asked without a
# filter, and pushFilters is not called, but the narrowed reader of the first query is used again: it
# counts 3 of 10 rows. A union of the filtered with the unfiltered frame loses rows within one query.
# A DataFrame that is loaded anew is right again.
#
# Expected output:
#   pyspark 4.2.0
#   all: 10
#   from 7 on: 3
#   all, the same DataFrame again: 3
#   both, united: 6
#   all, loaded anew: 10
#
# Needs Python 3.11 or later and a JDK (17 or later); installs into a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check pyspark==4.2.0 pyarrow

cat > probe.py <<'PY'
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, GreaterThanOrEqual, InputPartition


class Narrowed(DataSourceReader):
    first = 0

    def pushFilters(self, filters):
        for each in filters:
            if isinstance(each, GreaterThanOrEqual):
                self.first = each.value
            yield each  # Spark applies it, too

    def partitions(self):
        return [InputPartition(number) for number in range(self.first, 10)]

    def read(self, partition):
        yield (partition.value,)


class Numbers(DataSource):
    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "number int"

    def reader(self, schema):
        return Narrowed()


spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
spark.dataSource.register(Numbers)
print("pyspark", pyspark.__version__)
spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
frame = spark.read.format("numbers").load()
print("all:", frame.count())
late = frame.where("number >= 7")
print("from 7 on:", late.count())
print("all, the same DataFrame again:", frame.count())
print("both, united:", late.union(frame).count())
print("all, loaded anew:", spark.read.format("numbers").load().count())
spark.stop()
PY
PYSPARK_PYTHON="$folder/python/bin/python" python/bin/python probe.py > found.txt 2> spark.log || { cat spark.log >&2; exit 1; }
cat found.txt

cat > expected.txt <<'TXT'
pyspark 4.2.0
all: 10
from 7 on: 3
all, the same DataFrame again: 3
both, united: 6
all, loaded anew: 10
TXT
diff expected.txt found.txt
