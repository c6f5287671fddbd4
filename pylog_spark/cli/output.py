"""The two ways in which every command that looks can answer."""

import enum


class OutputFormat(enum.StrEnum):
    """How rows are written."""

    TABLE = "table"
    JSON = "json"
