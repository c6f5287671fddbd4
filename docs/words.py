"""Check names and first lines of docstrings by three rules; part of ``make lint``.

The whole product keeps them.
"""

import sys
from collections.abc import Mapping
from typing import Final

from docs.mass import LISTINGS, Module, read_modules

RULES: Final[Mapping[str, str]] = {
    "first docstring lines above 12 words": "begin with an imperative or a noun phrase",
    "names that are participles": "name the value by a noun of Kafka's vocabulary",
    "class names with two meanings": "give the less public class another name",
}


def broken_rules(modules: list[Module]) -> list[str]:
    """Return a line for each place that breaks a rule, and one for each broken rule.

    Args:
        modules: Of ``read_modules``.
    """
    lines = []
    for rule, advice in RULES.items():
        places = LISTINGS[rule](modules)
        if places:
            lines += [*places, f"{rule}: {len(places)}: {advice}"]
    return lines


def main() -> int:
    """Print what breaks a rule, and return the exit status."""
    lines = broken_rules(read_modules())
    for line in lines:
        sys.stdout.write(f"{line}\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
