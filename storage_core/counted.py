"""A number with its noun, as a person says it: 1 record, 1,272 records."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun, in the singular for one.

    Args:
        number: How many.
        noun: What, in the singular.
        plural: The plural, where it is not the noun with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
