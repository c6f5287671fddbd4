#!/bin/sh
# DuckDB 2.0.0 over a Polars 2.1.0 lazy frame: columns and WHERE are pushed into the frame, LIMIT is
# not, and the frame is collected whole before the first row comes.
#
# A source of Polars (register_io_source) that yields 100 frames of 1,000 rows is asked for 5 rows.
# Polars stops after the first frame. DuckDB, whose query names the lazy frame, hands the source the
# columns and the predicate of the query, but takes all 100 frames first, also for LIMIT 5, and for
# a result that is fetched by batches. The same frames as a pyarrow.RecordBatchReader are read as far
# as LIMIT needs, some frames ahead; but a reader takes no predicate. DuckDB 1.4.4 hands the source
# neither columns nor predicate.
# So a query that ends early, or whose table does not fit into memory, wants another door than a
# lazy frame.
#
# Expected output:
#   DuckDB 2.0.0, Polars 2.1.0
#   Polars, head(5): 5 rows, 1 of 100 frames
#   DuckDB, lazy frame, LIMIT 5: 5 rows, 100 of 100 frames, columns ['offset'], no predicate
#   DuckDB, lazy frame, WHERE and LIMIT 5: 5 rows, 100 of 100 frames, columns ['offset'], a predicate
#   DuckDB, lazy frame, first batch of a result: 100 of 100 frames
#   DuckDB, reader, LIMIT 5: 5 rows, fewer than 50 of 100 frames
#
# Needs Python 3.11 or later; installs into a temporary folder. Half a minute.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check duckdb==2.0.0 polars==2.1.0 pyarrow==21.0.0

cat > probe.py <<'PY'
import duckdb
import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

FRAMES, ROWS = 100, 1000
given = []
asked = []


def frame_of(number):
    given.append(number)
    offsets = range(number * ROWS, (number + 1) * ROWS)
    return pl.DataFrame({"offset": offsets, "key": ["k"] * ROWS})


def source(columns, predicate, most, _):
    asked[:] = [columns, "no predicate" if predicate is None else "a predicate"]
    for number in range(FRAMES):
        frame = frame_of(number)
        if predicate is not None:
            frame = frame.filter(predicate)
        frame = frame.select(columns or ["offset", "key"])
        if most is not None:
            frame = frame.head(most)
            most -= frame.height
        yield frame
        if most == 0:
            return


def counted():
    seen = len(given)
    given.clear()
    return seen


print(f"DuckDB {duckdb.__version__}, Polars {pl.__version__}")
lazy = register_io_source(source, schema={"offset": pl.Int64, "key": pl.String})
rows = lazy.head(5).collect().height
print(f"Polars, head(5): {rows} rows, {counted()} of {FRAMES} frames")
for name, condition in (("LIMIT 5", ""), ("WHERE and LIMIT 5", 'WHERE "offset" > 10')):
    query = f'SELECT "offset" FROM lazy {condition} LIMIT 5'
    rows = len(duckdb.sql(query).fetchall())
    columns, predicate = asked
    seen = f"{counted()} of {FRAMES} frames, columns {columns}, {predicate}"
    print(f"DuckDB, lazy frame, {name}: {rows} rows, {seen}")
batches = duckdb.sql('SELECT "offset" FROM lazy').to_arrow_reader(ROWS)
next(batches)
print(f"DuckDB, lazy frame, first batch of a result: {counted()} of {FRAMES} frames")
batches.close()
schema = pa.schema({"offset": pa.int64(), "key": pa.string()})
frames = (frame_of(number).to_arrow().cast(schema).to_batches()[0] for number in range(FRAMES))
reader = pa.RecordBatchReader.from_batches(schema, frames)
rows = len(duckdb.sql('SELECT "offset" FROM reader LIMIT 5').fetchall())
few = "fewer than 50" if counted() < 50 else "50 or more"
print(f"DuckDB, reader, LIMIT 5: {rows} rows, {few} of {FRAMES} frames")
PY
python/bin/python probe.py > found.txt 2> errors.txt || { cat errors.txt >&2; exit 1; }
cat found.txt

cat > expected.txt <<'TXT'
DuckDB 2.0.0, Polars 2.1.0
Polars, head(5): 5 rows, 1 of 100 frames
DuckDB, lazy frame, LIMIT 5: 5 rows, 100 of 100 frames, columns ['offset'], no predicate
DuckDB, lazy frame, WHERE and LIMIT 5: 5 rows, 100 of 100 frames, columns ['offset'], a predicate
DuckDB, lazy frame, first batch of a result: 100 of 100 frames
DuckDB, reader, LIMIT 5: 5 rows, fewer than 50 of 100 frames
TXT
diff expected.txt found.txt
