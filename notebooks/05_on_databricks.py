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
# # On Databricks
#
# Import the `.ipynb` that `make notebooks` writes. The cluster needs the wheel without extras, because the runtime already has Spark and Delta.
#
# `%pip install /Volumes/main/tools/wheels/pylog_spark-0.1.0-py3-none-any.whl`
#
# Two things differ from a machine of your own:
#
# - **A volume is a mounted bucket.** Commands that write refuse it (`FILESYSTEM_UNSAFE`); looks can read it. To maintain an archive, use
#   a managed root with its own URL (`s3://...`).
# - **There is a session** (`spark`). Do not stop it.

# %%
from pylog_spark.log_directory import LogDirectory
from pylog_spark.source import register
from storage_core.catalog.roles import Role

dbutils.widgets.text("root", "/Volumes/main/kafka/backup/kafka-1", "Log directory")
dbutils.widgets.text("ledger", "/Volumes/main/kafka/ledger", "Ledger")
ROOT = dbutils.widgets.get("root")
LEDGER = dbutils.widgets.get("ledger")

# %% [markdown]
# ## Is the backup whole?
#
# Another program owns a mirror, so pylog only reads it.

# %%
directory = LogDirectory.for_path(spark, ROOT, role=Role.MIRROR).with_options(ledger=LEDGER)
report = directory.verify_with_report(deep=True)
print(report.summary)
findings = report.findings_frame()
findings.groupBy("severity", "code").count().orderBy("severity", "code").toPandas()

# %% [markdown]
# ## Records, as a table
#
# Executors read the files; the driver reads none.

# %%
register(spark)
records = spark.read.format("kafka-log").option("subscribePattern", ".*").load(ROOT)
per_partition = (
    records.groupBy("topic", "partition").count().orderBy("topic", "partition").toPandas()
)
per_partition

# %%
axes = (
    per_partition.groupby("topic")["count"]
    .sum()
    .sort_values()
    .plot.barh(figsize=(8, 4), title="records")
)
axes.figure.tight_layout()

# %% [markdown]
# ## Earlier runs
#
# The list includes the `verify` above.

# %%
directory.past_runs(last=10).select("run_id", "action", "exit_code", "duration_ms").toPandas()

# %% [markdown]
# As a nightly job: a Python wheel task with the entry point `pylog` and the parameters
# `["run", "s3://archive/kafka", "--role", "managed", "--ledger", "..."]`.
