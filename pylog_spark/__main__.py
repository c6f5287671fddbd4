"""``python -m pylog_spark`` is the program ``pylog``.

Python looks for modules in the working directory here, which ``pylog`` does not: nothing of ours is
imported before that has ended.
"""

from storage_core.import_path import leave_working_directory

leave_working_directory()

from pylog_spark.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
