"""Compact log directories: ``spark-submit jobs/compact.py ROOT... --role broker [OPTIONS]``.

The options are those of ``pylog compact``; ``--help`` lists them.
"""

import sys

from pylog_spark.cli import main

if __name__ == "__main__":
    main(["compact", *sys.argv[1:]])
