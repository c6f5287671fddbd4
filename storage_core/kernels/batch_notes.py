"""Notes of a pass beside the headers of a window's batches.

Notes are one row of numbers a batch, as headers are. Beside ``int64[batch_scan.COLUMN_COUNT, n]``,
the headers, lies ``int64[NOTE_COUNT, n]``. Each step of a pass fills the columns that it answers,
and reads those of the steps before it.
"""

from typing import Final

# Where the records lie, once the batches are open (`records.payload`).
PLACE: Final = 0  # record_scan.IN_WINDOW and so on
RECORDS_START: Final = 1  # in the window or the arena
RECORDS_END: Final = 2
# What pass one noted, as pass two gets it.
FLAGS: Final = 3  # record_scan.INDEXED and so on, 0 where pass one did not look
FIRST_BIT: Final = 4  # where the bits of the batch begin in the survivors' bitmap
OWN_RANK: Final = 5  # of its first record, else of the last one before it; or NOT_DIRTY
PASS_ONE_COUNT: Final = 6  # its records, by pass one where that knows them, else by the header
# What headers and bitmaps settle (`batch_judge`).
ACTION: Final = 7  # batch_filter.DROP and so on
STEP: Final = 8  # batch_filter.SETTLED and so on
MARKS: Final = 9  # the bits below
SURVIVORS: Final = 10  # how many records stay
# What a look at its records says.
FIRST_RECORD: Final = 11  # number of its first record among those that are looked at
LOOK_UP_BIT: Final = 12  # where its bits begin in the bitmap of the look-up
TOMBSTONES: Final = 13  # how many of the survivors have no value
# What becomes of it (`batch_write`).
FATE: Final = 14  # batch_write.GONE and so on
DELETE_HORIZON: Final = 15  # of a rebuilt batch, NO_TIMESTAMP for none
PACKED_START: Final = 16  # of its records, rebuilt, and compressed where it has a codec
PACKED_END: Final = 17
NEW_BASE_TIMESTAMP: Final = 18  # of a rebuilt batch
NEW_MAX_TIMESTAMP: Final = 19
NEW_SIZE: Final = 20  # bytes of the batch as it is written
# What the sidecar of the cleaned segment says of it.
SIDECAR_FLAGS: Final = 21  # 0 where the next round has to read the batch
HASHES: Final = 22  # survivors.NOWHERE and so on
NOTE_COUNT: Final = 23

# In place of a rank: the record lies before the dirty part.
NOT_DIRTY: Final = -(2**62)

# Bits of MARKS.
KEEPS_ALL_TOMBSTONES: Final = 1  # it has some, by a sidecar, and all of its records stay
RETAINS_EMPTY: Final = 2  # its header stays without records
LOSES_TRANSACTION: Final = 4  # it is a marker that nothing refers to
IS_REBUILT: Final = 8  # it is made anew, whatever it loses
KEEPS_TOMBSTONES: Final = 16
NEEDS_RECORDS: Final = 32  # somebody has to look at them
IS_LOOKED_UP: Final = 64  # in the map: no bit tells of its records

# What pass one noted of the segments of a window, ``int64[NOTED_COUNT, segments]``: a column each.
# Each of the four that say what comes next moves on with the batches.
NOTED_START: Final = 0  # where in its file the dirty part begins
NOTED_FLAG: Final = 1  # of its next batch, among the flags
NOTED_FLAG_END: Final = 2
NOTED_LEGACY: Final = 3  # of its next batch of a legacy format, among their counts
NOTED_LEGACY_END: Final = 4
NOTED_BIT: Final = 5  # of its next record, in the bitmap
NOTED_BIT_END: Final = 6
NOTED_RANK: Final = 7  # of that record
NOTED_COUNT: Final = 8
