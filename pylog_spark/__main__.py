"""``python -m pylog_spark`` is the program ``pylog``.

Python looks for modules in the working directory here, which ``pylog`` does not: nothing of ours
but what lies in this package is imported before that has ended.
"""

import _signal  # type: ignore[import-not-found]  # built in; `signal` imports others

# As ``cli.end_silently``, before anything of ours is looked for on a disk.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

from storage_core.import_path import leave_working_directory

leave_working_directory()

if __name__ == "__main__":
    from pylog_spark.cli.start import start

    start()
