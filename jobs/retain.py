"""Remove what has expired: ``spark-submit jobs/retain.py ROOT... --role broker [OPTIONS]``.

The options are those of ``pylog retain``; ``--help`` lists them.
"""

import sys

from pylog_spark.cli import main

if __name__ == "__main__":
    main(["retain", *sys.argv[1:]])
