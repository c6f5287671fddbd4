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
# # What is in this log directory?
#
# Look at a broker's directory, a copy of one, or an archive on S3. This notebook writes nothing, takes no lock and
# needs no Spark.
#
# Set `PYLOG_ROOT` to your own directory before you start Jupyter. Without it, the notebook uses a small directory that
# Apache Kafka wrote for the tests of this project.

# %%
import os
import tarfile

import matplotlib.pyplot as plt
from humanize import naturalsize

from storage_core import kafka_log

ROOT = os.environ.get("PYLOG_ROOT")
if ROOT is None:
    ROOT = "../build/examples/kafka"
    with tarfile.open("../tests/golden/broker-uncleaned/before.tar.gz") as archive:
        archive.extractall(ROOT, filter="data")

logs = kafka_log.open_logs(ROOT)
logs.topics()

# %% [markdown]
# ## Partitions
#
# Each partition has one row. If a partition cannot be read, its row has an `error`.

# %%
partitions = logs.partitions().to_pandas()
partitions["records at most"] = partitions["log_end_offset"] - partitions["log_start_offset"]
partitions["size"] = partitions["size_bytes"].map(lambda size: naturalsize(size, binary=True))
partitions.sort_values("size_bytes", ascending=False).drop(columns="size_bytes").head(20)

# %%
size = partitions.groupby("topic")["size_bytes"].sum().sort_values()
figure, axes = plt.subplots(figsize=(8, 0.35 * len(size) + 1))
axes.barh(size.index, size / 1024)
axes.set_xlabel("KiB of .log files")
axes.set_title("Where the bytes are")
figure.tight_layout()

# %% [markdown]
# ## Segments
#
# Kafka deletes and compacts whole segments, by their number and age. It never deletes the last segment, the active one.

# %%
segments = logs.segments().to_pandas()
closed = segments[~segments["is_active"]]
overview = segments.groupby("topic").agg(
    segments=("base_offset", "count"),
    bytes=("size_bytes", "sum"),
    newest=("newest_timestamp", "max"),
)
overview["closed share"] = closed.groupby("topic")["size_bytes"].sum() / overview["bytes"]
overview.sort_values("bytes", ascending=False)

# %%
largest = size.index[-1]
of_topic = segments[segments["topic"] == largest]
by_day = (
    of_topic.groupby([of_topic["newest_timestamp"].dt.date, "is_active"])["size_bytes"]
    .sum()
    .unstack(fill_value=0)
)
axes = (by_day / 1024).plot.bar(
    stacked=True, figsize=(8, 3), title=f"How old the segments of {largest} are"
)
axes.set_xlabel("day of their newest record")
axes.set_ylabel("KiB")
axes.legend(["closed", "active"])
axes.figure.tight_layout()

# %% [markdown]
# ## Records
#
# You choose columns, a range of offsets or times, and keys; only these are read. Polars, DuckDB and pandas use the answer without a copy.

# %%
first = (
    logs.read(largest, columns=["partition", "offset", "timestamp", "key", "value"])
    .to_table()
    .slice(0, 5)
    .to_pandas()
)
for name in ("key", "value"):  # bytes
    first[name] = first[name].str.decode("utf-8", errors="backslashreplace")
first

# %% [markdown]
# Next: [why is this topic so big?](02_why_is_this_topic_so_big.py), or [records as tables](06_records_as_tables.py)
