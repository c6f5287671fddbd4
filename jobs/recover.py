"""Recover log directories: ``spark-submit jobs/recover.py ROOT... --role broker [OPTIONS]``.

The options are those of ``pylog recover``; ``--help`` lists them.
"""

import sys

from pylog_spark.cli import main

if __name__ == "__main__":
    main(["recover", *sys.argv[1:]])
