#!/bin/sh
# pyarrow 26.0.1 imports pandas, if there is one, to make an array of a list or of a NumPy array.
#
# Nothing of pandas is asked for: a column of integers is made of a list of integers. Before it looks
# at the values, pyarrow asks whether the list is a Series, and imports pandas for the question. So
# each process that makes its first array pays for the import (0.2 s of processor time here), in
# forks of workers as well, and a program starts slower for a package that it never uses. Reading
# an IPC file or computing on arrays that exist imports none. A finder on sys.meta_path that refuses
# pandas spares it, for a process that is one's own.
#
# Expected output:
#   pyarrow 26.0.1, pandas 2.3.3
#   pa.array([1, 2]): pandas is imported
#   pa.array(numpy.arange(2)): pandas is imported
#   pa.RecordBatch.from_pylist([{"a": 1}]): pandas is imported
#   pa.ipc.open_stream(...).read_all(): pandas is not imported
#   pa.array([1, 2]), pandas refused by a finder: pandas is not imported, [1, 2]
#
# Needs Python 3.11 or later; installs into a temporary folder. Half a minute.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check pyarrow==26.0.1 pandas==2.3.3 numpy==2.3.4

cat > probe.py <<'PY'
import sys
from importlib.abc import MetaPathFinder
from importlib.metadata import version

import numpy
import pyarrow as pa


class Refusing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name)


def is_imported():
    return f"pandas is {'' if 'pandas' in sys.modules else 'not '}imported"


match sys.argv[1]:
    case "versions":
        print(f"pyarrow {version('pyarrow')}, pandas {version('pandas')}")
    case "list":
        pa.array([1, 2])
        print(f"pa.array([1, 2]): {is_imported()}")
    case "numpy":
        pa.array(numpy.arange(2))
        print(f"pa.array(numpy.arange(2)): {is_imported()}")
    case "rows":
        pa.RecordBatch.from_pylist([{"a": 1}])
        print(f'pa.RecordBatch.from_pylist([{{"a": 1}}]): {is_imported()}')
    case "write":
        batch = pa.RecordBatch.from_pylist([{"a": 1}])
        with pa.OSFile("stream", "wb") as file, pa.ipc.new_stream(file, batch.schema) as stream:
            stream.write(batch)
    case "read":
        with pa.OSFile("stream") as file:
            pa.ipc.open_stream(file).read_all()
        print(f"pa.ipc.open_stream(...).read_all(): {is_imported()}")
    case "refused":
        sys.meta_path.insert(0, Refusing())
        made = pa.array([1, 2]).to_pylist()
        print(f"pa.array([1, 2]), pandas refused by a finder: {is_imported()}, {made}")
PY

for part in versions list numpy rows write read refused; do
    venv/bin/python probe.py "$part"
done > found.txt
cat found.txt

cat > expected.txt <<'TXT'
pyarrow 26.0.1, pandas 2.3.3
pa.array([1, 2]): pandas is imported
pa.array(numpy.arange(2)): pandas is imported
pa.RecordBatch.from_pylist([{"a": 1}]): pandas is imported
pa.ipc.open_stream(...).read_all(): pandas is not imported
pa.array([1, 2]), pandas refused by a finder: pandas is not imported, [1, 2]
TXT
diff expected.txt found.txt
