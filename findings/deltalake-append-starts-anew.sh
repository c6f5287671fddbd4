#!/bin/sh
# deltalake 1.6.6: an append to a table whose log is gone begins a new table, and says nothing.
#
# A lifecycle rule of a bucket, or a copy without folders whose names begin with "_", may take the
# _delta_log of a table and leave its data files. write_deltalake(mode="append") does not look at
# these: it makes version 0 with the new rows alone, without an error or a warning. All former rows
# are gone from the table while their files lie beside it, and the next vacuum may remove them.
# Opening the table by DeltaTable before, as readers do, raises TableNotFoundError: a writer that
# appends without opening never sees it.
#
# Expected output:
#   deltalake 1.6.6, pyarrow 26.0.1
#   before: version 1, 2 rows, 2 data files
#   open without log: TableNotFoundError
#   append without log: done
#   after: version 0, 1 rows, 3 data files
#
# Needs Python 3.11 or later; installs into a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==26.0.1

cat > probe.py <<'PY'
import shutil
import warnings
from pathlib import Path

import deltalake
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

warnings.simplefilter("error")
table = Path("table").absolute()


def tell(when):
    opened = DeltaTable(table)
    rows = opened.to_pyarrow_table().num_rows
    files = len(list(table.rglob("*.parquet")))
    print(f"{when}: version {opened.version()}, {rows} rows, {files} data files")


print(f"deltalake {deltalake.__version__}, pyarrow {pa.__version__}")
for number in range(2):
    write_deltalake(table, pa.table({"run": [number]}), mode="append")
tell("before")
shutil.rmtree(table / "_delta_log")
try:
    DeltaTable(table)
except TableNotFoundError as error:
    print("open without log:", type(error).__name__)
write_deltalake(table, pa.table({"run": [2]}), mode="append")
print("append without log: done")
tell("after")
PY
venv/bin/python probe.py > seen
cat > wanted <<'WANTED'
deltalake 1.6.6, pyarrow 26.0.1
before: version 1, 2 rows, 2 data files
open without log: TableNotFoundError
append without log: done
after: version 0, 1 rows, 3 data files
WANTED
cat seen
diff wanted seen
