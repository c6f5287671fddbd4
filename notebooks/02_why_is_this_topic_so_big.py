# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: "1.3"
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Why is this topic so big?
#
# Its bytes are keys with many versions, young records, and segments that were never compacted. What would a compaction leave? This notebook
# writes nothing.
#
# `PYLOG_ROOT` names your own directory; otherwise the notebook uses one that Apache Kafka wrote for the tests of this project.

# %%
import os
import tarfile

import matplotlib.pyplot as plt
from humanize import naturalsize
from pyspark.sql import functions as F

from pylog_spark.log_directory import LogDirectory
from pylog_spark.session import build_session
from pylog_spark.source import register
from storage_core.catalog.roles import Role

ROOT = os.environ.get("PYLOG_ROOT")
if ROOT is None:
    ROOT = "../build/examples/kafka"
    with tarfile.open("../tests/golden/broker-uncleaned/before.tar.gz") as archive:
        archive.extractall(ROOT, filter="data")

spark = build_session("local[2]")
register(spark)
directory = LogDirectory.for_path(spark, ROOT, role=Role.BROKER)

# %% [markdown]
# ## Which partitions are due, and why the others are not
#
# These are the rules of Kafka's cleaner and retention, with their numbers. A survey opens no `.log` file.

# %%
survey = directory.survey().toPandas()
sizes = ["bytes", "removable_bytes", "cleanable_bytes"]
largest = survey.sort_values("bytes", ascending=False).head(10)
largest[sizes] = largest[sizes].map(naturalsize, na_action="ignore", binary=True)
largest[["topic", "partition", "segments", *sizes]]

# %%
TOPIC = survey.groupby("topic")["bytes"].sum().idxmax()
directory.explain().where(F.col("topic") == TOPIC).select(
    "partition", "about", "is_due", "text"
).toPandas()

# %% [markdown]
# ## Which keys
#
# `kafka-log` reads records as a DataFrame, with the columns of Spark's own Kafka source.

# %%
records = spark.read.format("kafka-log").option("subscribe", TOPIC).load(ROOT)
keys = (
    records.groupBy("key")
    .agg(
        F.count("*").alias("versions"),
        F.sum(F.length("value")).alias("bytes"),
        F.max("timestamp").alias("newest"),
    )
    .orderBy(F.desc("bytes"))
)
top = keys.limit(15).toPandas()
top["key"] = top["key"].str.decode("utf-8", errors="backslashreplace").fillna("null")
top

# %%
figure, axes = plt.subplots(figsize=(8, 4))
axes.barh(top["key"][::-1], top["bytes"][::-1])
axes.set_xlabel("bytes of values, all versions")
axes.set_title(f"Largest keys of {TOPIC}")
figure.tight_layout()

# %%
total, distinct = records.agg(F.count("*"), F.countDistinct("key")).first()
print(f"{total:,} records of {distinct:,} keys: {total - distinct:,} have a newer version")

# %% [markdown]
# ## What a compaction would leave
#
# A plan changes nothing. With `exact` it reads the records and gives the exact result; without it `bytes_after` is an upper bound.

# %%
plan = directory.with_options(exact=True).plan("compact")
print(plan.summary())
planned = (
    plan.df.where("status = 'planned'")
    .select("topic", "partition", "bytes_before", "bytes_after", "segments_before")
    .toPandas()
)
sizes = ["bytes_before", "bytes_after"]
of_topic = planned[planned["topic"] == TOPIC]
of_topic.assign(**of_topic[sizes].map(naturalsize, na_action="ignore", binary=True))

# %%
shown = planned.groupby("topic")[sizes].sum().sort_values("bytes_before")
if shown.empty:
    print("Nothing is due, or no source says the topics' configs: explain() above has the reasons.")
else:
    axes = (shown / 1024).plot.barh(figsize=(8, 4), title="Before a compaction, and afterwards")
    axes.set_xlabel("KiB")
    axes.legend(["before", "after"])
    axes.figure.tight_layout()

# %% [markdown]
# `plan.apply()` executes exactly this plan, and refuses each partition that has changed since. On the command line:
# `pylog compact DIR --role broker --dry-run --plan-out plan.json`, then `pylog apply plan.json`.

# %%
spark.stop()
