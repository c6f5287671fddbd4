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
# # Records as tables
#
# A dead broker's disk holds answers, not bytes: its topics become DataFrames with typed columns, and tables of SQL. The
# schemas come from the registry's own topic, `_schemas`, on the same disk. This notebook writes nothing and needs no Spark.
#
# The directory is that of a web shop: orders (Avro, whose schema changed three times), customers, payments (Protobuf) and
# page views (JSON Schema), written by Apache Kafka and the official serializers. `PYLOG_ROOT` names your own.

# %%
import os
import tarfile

import duckdb
import polars as pl
import pyarrow.compute as pc

from storage_core import kafka_log

ROOT = os.environ.get("PYLOG_ROOT")
if ROOT is None:
    ROOT = "../build/examples/shop"
    with tarfile.open("../tests/golden/registry-broker/broker.tar.gz") as archive:
        archive.extractall(ROOT, filter="data")

# %% [markdown]
# ## From the disk to a DataFrame
#
# `value_format="registry"` reads each value by the schema that wrote it, and makes the columns of the newest one.

# %%
logs = kafka_log.open_logs(ROOT)
records = logs.read("orders", columns=["timestamp", "value"], value_format="registry")
written = records.to_table().filter(pc.field("value").is_valid())  # a deleted order has no value
orders = written.flatten().to_pandas()
orders.columns = orders.columns.str.removeprefix("value.")
orders[["timestamp", "id", "customer", "state", "total", "origin", "paid_at"]].tail()

# %% [markdown]
# ## A chart

# %%
turnover = (
    orders.assign(total=orders["total"].astype(float), origin=orders["origin"].fillna("unknown"))
    .groupby([orders["timestamp"].dt.floor("6h"), "origin"])["total"]
    .sum()
    .unstack()
)
axes = turnover.plot.area(figsize=(8, 3.5), title="Turnover, by where orders come from")
axes.set_xlabel("six hours from")
axes.set_ylabel("EUR")
axes.figure.tight_layout()

# %% [markdown]
# ## An answer by SQL
#
# Every topic is a table. DuckDB hands columns and conditions to the logs, which read only what these leave.

# %%
shop = duckdb.connect()
for topic in ("orders", "customers"):
    shop.register(topic, logs.dataset(topic, value_format="registry"))
shop.sql("""
    SELECT c.value.name AS customer, c.value.address.city AS city, count(*) AS orders, sum(o.value.total) AS total
    FROM orders o JOIN customers c ON o.value.customer = c.value.id
    WHERE o.timestamp >= '2026-11-04'
    GROUP BY ALL ORDER BY total DESC LIMIT 5
""").df()

# %% [markdown]
# In a shell: `pylog sql DIR "SELECT ..." --value-format registry`, or `pylog sql DIR` for a prompt.

# %% [markdown]
# ## Lazily, with Polars
#
# `scan` is a lazy frame: what its query does not need is not read.

# %%
(
    logs.scan("payments", value_format="registry")
    .select("timestamp", pl.col("value").struct.unnest())
    .filter(pl.col("outcome") == "DECLINED")
    .select("timestamp", "order", pl.col("amount").struct.field("cents") / 100, "risk")
    .head(5)
    .collect()
)
