"""Check names and first lines of docstrings by three rules; part of ``make lint``.

A rule that the whole product keeps has the number 0 in ``docs/mass.json``. Until then no change may
break one more often than that file says.
"""

import json
import sys
from collections.abc import Mapping
from typing import Final

from docs.mass import KEPT, LISTINGS, Module, read_modules

RULES: Final[Mapping[str, str]] = {
    "first docstring lines above 12 words": "begin with an imperative or a noun phrase",
    "names that are participles": "name the value by a noun of Kafka's vocabulary",
    "class names with two meanings": "give the less public class another name",
}


def broken_rules(modules: list[Module], numbers: Mapping[str, int]) -> list[str]:
    """Return a line for each place and each rule that is broken too often.

    Args:
        modules: Of ``read_modules``.
        numbers: How often each rule may be broken.
    """
    lines = []
    for rule, advice in RULES.items():
        places = LISTINGS[rule](modules)
        if len(places) > numbers[rule]:
            lines += [*places, f"{rule}: {len(places)}, at most {numbers[rule]}: {advice}"]
    return lines


def main() -> int:
    """Print what breaks a rule too often, and return the exit status."""
    lines = broken_rules(read_modules(), json.loads(KEPT.read_text()))
    for line in lines:
        sys.stdout.write(f"{line}\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
