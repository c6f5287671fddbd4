#!/bin/sh
# PySpark 4.2.0, classic: SparkSession.interruptTag cancels nothing of another thread.
#
# addTag tags "all the operations started by this thread"; interruptTag promises to "interrupt all
# operations of this session with the given operation tag". So a watchdog, or a handler of another
# thread, asks interruptTag for the tag that the working thread has added. On classic Spark a tag of
# a session is kept per thread, under a name that is made anew in each: the call returns an empty
# list, raises nothing, and the job runs to its end. Adding the same tag in the asking thread does not
# help. SparkContext's own pair, addJobTag and cancelJobsWithTag, does what the names say.
#
# Expected output:
#   PySpark 4.2.0
#   interruptTag, asked by another thread: 0 operations, the job ran to its end
#   interruptTag, the tag added there too: 0 operations, the job ran to its end
#   cancelJobsWithTag, asked by another thread: the job was cancelled
#
# Needs Python 3.11 or later and Java 17 or later; installs into a temporary folder. Half a minute.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check pyspark==4.2.0

cat > probe.py <<'PY'
import threading
import time

import pyspark
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
context = spark.sparkContext
context.setLogLevel("OFF")
print(f"PySpark {pyspark.__version__}")


def end_of_job(tag, ask):
    """Run a job of four seconds in a thread of its own; ask from this one while it runs."""
    ended = []

    def work():
        spark.addTag(tag)
        context.addJobTag(tag)
        try:
            context.parallelize(range(2), 2).foreach(lambda _: time.sleep(4))
            ended.append("the job ran to its end")
        except Exception:
            ended.append("the job was cancelled")

    thread = threading.Thread(target=work)
    thread.start()
    while not context.statusTracker().getActiveStageIds():
        time.sleep(0.05)
    said = ask(tag)
    thread.join()
    return (said or "") + ended[0]


def interrupt(tag):
    return f"{len(spark.interruptTag(tag))} operations, "


def add_and_interrupt(tag):
    spark.addTag(tag)
    return interrupt(tag)


print("interruptTag, asked by another thread:", end_of_job("one", interrupt))
print("interruptTag, the tag added there too:", end_of_job("two", add_and_interrupt))
end = end_of_job("three", context.cancelJobsWithTag)
print("cancelJobsWithTag, asked by another thread:", end)
spark.stop()
PY
venv/bin/python probe.py > found.txt 2> errors.txt || { cat errors.txt >&2; exit 1; }
cat found.txt

cat > expected.txt <<'TXT'
PySpark 4.2.0
interruptTag, asked by another thread: 0 operations, the job ran to its end
interruptTag, the tag added there too: 0 operations, the job ran to its end
cancelJobsWithTag, asked by another thread: the job was cancelled
TXT
diff expected.txt found.txt
