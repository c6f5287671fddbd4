"""Topics that a person chooses, by names and patterns."""

from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Final

# Characters that no topic name has.
_PATTERN_CHARACTERS: Final = frozenset("*?[")
# Minimum similarity of a suggested name: 1 letter in 4 may differ.
_LEAST_LIKENESS: Final = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFilter:
    """Which topics a run is about."""

    # Globs; a topic has to match one of them. None of them lets every topic in.
    topics: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()  # globs; a topic that matches one of them is left out

    def admits(self, topic: str | None) -> bool:
        """Whether a topic passes; None passes if no topic was asked for. The name None stands
        for a directory without a topic."""
        if topic is None:
            return not self.topics
        asked = not self.topics or any(fnmatchcase(topic, glob) for glob in self.topics)
        return asked and not any(fnmatchcase(topic, glob) for glob in self.exclude)


def is_pattern(glob: str) -> bool:
    """Whether a glob is more than the name of one topic."""
    return not _PATTERN_CHARACTERS.isdisjoint(glob)


def unmatched_globs(globs: Collection[str], topics: Collection[str]) -> list[str]:
    """Return the globs that no topic matches, in their order."""
    return [
        glob
        for glob in globs
        if glob not in topics and not any(fnmatchcase(topic, glob) for topic in topics)
    ]


def nearest_name(name: str, names: Collection[str]) -> str | None:
    """Return the name nearest to a mistyped one, else None."""
    return next(iter(get_close_matches(name, names, n=1, cutoff=_LEAST_LIKENESS)), None)
