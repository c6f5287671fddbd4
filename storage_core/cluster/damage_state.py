"""What becomes of damage in a log, by name alone."""

import enum


class DamageState(enum.StrEnum):
    """What becomes of damage: it is filled, or why it is left."""

    FILLED = "FILLED"
    NO_DONOR = "NO_DONOR"
    DONOR_LACKS = "DONOR_LACKS"
    DONOR_DAMAGED = "DONOR_DAMAGED"
    DONOR_DIVERGED = "DONOR_DIVERGED"
    COMPACTED_APART = "COMPACTED_APART"
    DONORS_DIFFER = "DONORS_DIFFER"
    SEGMENT_LEFT = "SEGMENT_LEFT"
