#!/bin/sh
# PySpark 4.2.0, classic: DataFrame.mapInArrow wants pandas where the query is written, and only there.
#
# mapInArrow hands a function iterators of pyarrow.RecordBatch. No pandas is in its signature, and
# none is used: workers whose Python has pyarrow alone do the work. But the call builds its function
# by pandas_udf, which first asks for pandas and ends with an error where it is not installed.
# DataFrame.toArrow and createDataFrame of a pyarrow.Table take the same driver without pandas.
# So an image of drivers that leaves pandas out, which the workers' image may, breaks at the first
# mapInArrow.
#
# Expected output:
#   PySpark 4.2.0, driver without pandas, workers without pandas
#   createDataFrame of an Arrow table and toArrow: 3 rows
#   mapInArrow: PySparkImportError PACKAGE_NOT_INSTALLED
#   PySpark 4.2.0, driver with pandas, workers without pandas
#   createDataFrame of an Arrow table and toArrow: 3 rows
#   mapInArrow: 3 rows, pandas in the worker: False
#
# Needs Python 3.11 or 3.12 and Java 17 or later; installs into a temporary folder. Two minutes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv driver
python3 -m venv worker
driver/bin/pip install --quiet --disable-pip-version-check pyspark==4.2.0 pyarrow==21.0.0
worker/bin/pip install --quiet --disable-pip-version-check pyarrow==21.0.0

cat > probe.py <<'PY'
import importlib.util

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
has_pandas = importlib.util.find_spec("pandas") is not None
with_it = "with" if has_pandas else "without"
print(f"PySpark {pyspark.__version__}, driver {with_it} pandas, workers without pandas")

frame = spark.createDataFrame(pa.table({"number": [1, 2, 3]}))
rows = frame.toArrow().num_rows
print(f"createDataFrame of an Arrow table and toArrow: {rows} rows")


def see(batches):
    import importlib.util

    for batch in batches:
        found = importlib.util.find_spec("pandas") is not None
        yield pa.RecordBatch.from_pydict({"has_pandas": [found] * batch.num_rows})


try:
    seen = [row.has_pandas for row in frame.mapInArrow(see, "has_pandas boolean").collect()]
    print(f"mapInArrow: {len(seen)} rows, pandas in the worker: {any(seen)}")
except Exception as error:
    print("mapInArrow:", type(error).__name__, error.getCondition())
spark.stop()
PY
export PYSPARK_PYTHON="$folder/worker/bin/python"
driver/bin/python probe.py > found.txt 2> errors.txt || { cat errors.txt >&2; exit 1; }
driver/bin/pip install --quiet --disable-pip-version-check pandas==2.3.3
driver/bin/python probe.py >> found.txt 2> errors.txt || { cat errors.txt >&2; exit 1; }
cat found.txt

cat > expected.txt <<'TXT'
PySpark 4.2.0, driver without pandas, workers without pandas
createDataFrame of an Arrow table and toArrow: 3 rows
mapInArrow: PySparkImportError PACKAGE_NOT_INSTALLED
PySpark 4.2.0, driver with pandas, workers without pandas
createDataFrame of an Arrow table and toArrow: 3 rows
mapInArrow: 3 rows, pandas in the worker: False
TXT
diff expected.txt found.txt
