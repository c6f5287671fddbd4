"""``python -m pylog_spark`` is the program ``pylog``.

Python looks for modules in the working directory here, which ``pylog`` does not: nothing of ours
but what lies in this package is imported before that has ended.
"""

from pylog_spark.cli import end_silently, main

end_silently()

from storage_core.import_path import leave_working_directory  # noqa: E402

leave_working_directory()

if __name__ == "__main__":
    main()
