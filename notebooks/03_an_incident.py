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
# # An incident: find corruption, and cut it
#
# A broker died, and one of its files is damaged. Which file? What would a start do? Which records can you keep?
#
# This notebook copies a directory that Apache Kafka wrote, and damages one byte. It runs on this machine, without Spark.

# %%
import tarfile
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from pylog_spark.engines.choice import Local
from pylog_spark.log_directory import LogDirectory
from storage_core import kafka_log
from storage_core.catalog.roles import Role

FOLDER = Path(tempfile.mkdtemp(prefix="incident-"))
ROOT = FOLDER / "kafka"
ROOT.mkdir()
with tarfile.open("../tests/golden/broker-uncleaned/before.tar.gz") as archive:
    archive.extractall(ROOT, filter="data")

# %% [markdown]
# The accident: the marker of a clean shutdown is gone, the recovery points are those of the start, and one byte in the newest segment
# of `orders-by-id-0` is wrong.

# %%
for marker in ROOT.glob(".kafka_cleanshutdown"):
    marker.unlink()
(ROOT / "recovery-point-offset-checkpoint").write_text("0\n0\n")
damaged = max((ROOT / "orders-by-id-0").glob("*.log"))
place = damaged.stat().st_size // 2
with damaged.open("r+b") as file:
    file.seek(place)
    byte = file.read(1)[0]
    file.seek(place)
    file.write(bytes([byte ^ 0x01]))
print(f"{damaged.name}: byte {place} of {damaged.stat().st_size}")

# %% [markdown]
# ## What is wrong?
#
# `doctor` reads all files, changes nothing, and says what to do.

# %%
directory = LogDirectory.for_path(Local(), ROOT, role=Role.BROKER)
diagnosis = directory.doctor()
print(diagnosis.verdict.headline)
for reason in diagnosis.verdict.reasons:
    print(" ", reason)
for command in diagnosis.verdict.commands:
    print("  $", command)

# %%
verified = directory.verify_with_report(deep=True)
findings = pd.DataFrame(verified.findings)
findings[["severity", "code", "topic", "partition", "file", "position", "message"]].head(10)

# %%
counts = pd.DataFrame(
    [(count.severity, count.code, count.count) for count in verified.counts],
    columns=["severity", "code", "count"],
)
axes = counts.set_index("code")["count"].plot.barh(
    figsize=(8, 2 + 0.3 * len(counts)), title="Findings by code"
)
axes.figure.tight_layout()

# %% [markdown]
# ## What would a recovery cut?
#
# A dry run does in parallel what a broker's start would do, but writes nothing. Each cut has a row with place, size and reason.

# %%
before = kafka_log.open_logs(ROOT).partitions("orders-by-id").to_pandas()
would = directory.recover_with_report(dry_run=True)
cuts = would.cuts.to_pandas()
cuts[["topic", "partition", "status", "file", "position", "size_bytes", "first_offset", "reason"]]

# %% [markdown]
# ## Recover, and keep the cut records
#
# `salvage` first copies the records to cut. A guard refuses to cut acknowledged records (below the high watermark); `allow_truncate` allows it.

# %%
patient = directory.with_options(salvage=str(FOLDER / "salvaged"), allow_truncate=True)
done = patient.recover_with_report()
done.summary

# %%
sorted(str(path.relative_to(FOLDER)) for path in (FOLDER / "salvaged").rglob("*") if path.is_file())

# %% [markdown]
# ## Is it whole now?

# %%
again = patient.verify_with_report(deep=True)
print({count.code: count.count for count in again.counts} or "nothing is found")
after = kafka_log.open_logs(ROOT).partitions("orders-by-id").to_pandas()
lost = before["log_end_offset"] - after["log_end_offset"]
pd.DataFrame(
    {
        "partition": before["partition"],
        "end before": before["log_end_offset"],
        "end now": after["log_end_offset"],
        "lost": lost,
    }
)

# %%
figure, axes = plt.subplots(figsize=(8, 2))
axes.barh(
    [f"orders-by-id-{number}" for number in after["partition"]],
    after["log_end_offset"],
    label="kept",
)
axes.barh(
    [f"orders-by-id-{number}" for number in after["partition"]],
    lost,
    left=after["log_end_offset"],
    label="cut",
)
axes.set_xlabel("offset")
axes.legend()
figure.tight_layout()
