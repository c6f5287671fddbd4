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
# # What did maintenance do, run by run?
#
# With `--ledger` pylog records every run in Delta tables: `runs`, `results`, `operations`, `findings`, `cleanings`. This notebook reads them.
#
# `PYLOG_LEDGER` names your own ledger. Without it, the notebook first makes four runs on a copy of a directory that Apache Kafka wrote.

# %%
import os
import tarfile
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from pylog_spark.engines.choice import Local
from pylog_spark.log_directory import LogDirectory
from pylog_spark.session import build_session
from storage_core.catalog.roles import Role

LEDGER = os.environ.get("PYLOG_LEDGER")
if LEDGER is None:
    folder = Path(tempfile.mkdtemp(prefix="history-"))
    root = folder / "kafka"
    root.mkdir()
    with tarfile.open("../tests/golden/broker-uncleaned/before.tar.gz") as archive:
        archive.extractall(root, filter="data")
    LEDGER = str(folder / "ledger")
    directory = LogDirectory.for_path(Local(), root, role=Role.BROKER).with_options(ledger=LEDGER)
    in_a_month_ms = directory.options.now_ms + 30 * 86_400_000
    for report in (
        directory.verify_with_report(deep=True),
        directory.retain_with_report(),
        directory.compact_with_report(),
        directory.with_options(now_ms=in_a_month_ms).run_with_report(),
    ):
        print(report.run_id, report.action, report.summary)

# %%
spark = build_session("local[2]")
for table in ("runs", "results", "findings"):
    spark.read.format("delta").load(f"{LEDGER}/{table}").createOrReplaceTempView(table)

# %% [markdown]
# ## The runs

# %%
runs = spark.sql(
    """
    SELECT run_id, at, action, exit_code, partitions_done, partitions_failed, bytes_before, bytes_after, duration_ms
    FROM runs WHERE event = 'END' ORDER BY at
    """
).toPandas()
runs

# %%
named = runs.set_axis(runs["action"] + " " + runs["at"].dt.strftime("%H:%M:%S"))
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3))
(named[["bytes_before", "bytes_after"]] / 1024).plot.barh(
    ax=left, title="KiB of the partitions worked on"
)
(named["duration_ms"] / 1000).plot.barh(ax=right, title="seconds")
figure.tight_layout()

# %% [markdown]
# ## Which topics, and which operations

# %%
by_topic = spark.sql(
    """
    SELECT topic, action, count(*) AS partitions, sum(bytes_before - bytes_after) AS freed
    FROM results WHERE status = 'done' GROUP BY topic, action ORDER BY freed DESC
    """
).toPandas()
by_topic.head(20)

# %%
freed = by_topic.pivot_table(
    index="topic", columns="action", values="freed", aggfunc="sum", fill_value=0
)
axes = (freed / 1024).plot.barh(stacked=True, figsize=(8, 4), title="KiB freed")
axes.figure.tight_layout()

# %% [markdown]
# ## Did every night end?
#
# A run that died has a START row and no END row. Use this query for an alert.

# %%
died = spark.sql(
    """
    SELECT run_id, at, action, roots FROM runs
    WHERE event = 'START' AND run_id NOT IN (SELECT run_id FROM runs WHERE event = 'END')
    """
)
print(f"{died.count()} runs have no end")
died.toPandas()

# %% [markdown]
# ## Failed and skipped partitions

# %%
spark.sql(
    """
    SELECT coalesce(reason, error_class) AS why, count(*) AS rows, count(DISTINCT topic) AS topics
    FROM results WHERE status IN ('skipped', 'failed') GROUP BY 1 ORDER BY rows DESC
    """
).toPandas()

# %%
spark.stop()
