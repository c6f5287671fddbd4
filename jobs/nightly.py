"""Do all that is due: ``spark-submit jobs/nightly.py ROOT... --role broker [OPTIONS]``.

The options are those of ``pylog run``; ``--help`` lists them.
"""

import sys

from pylog_spark.cli import main

if __name__ == "__main__":
    main(["run", *sys.argv[1:]])
