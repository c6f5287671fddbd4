"""Verify log directories: ``spark-submit jobs/verify.py ROOT... [OPTIONS]``.

The options are those of ``pylog verify``; ``--help`` lists them.
"""

import sys

from pylog_spark.cli import main

if __name__ == "__main__":
    main(["verify", *sys.argv[1:]])
