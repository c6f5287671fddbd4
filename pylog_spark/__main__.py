"""``python -m pylog_spark`` is the program ``pylog``."""

from pylog_spark.cli import main

if __name__ == "__main__":
    main()
