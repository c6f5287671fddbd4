"""The parts of an explanation: predicates with numbers, and answers."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

Number = int | float | str | bool | None


class About(enum.StrEnum):
    """The question of a statement: why not cleaned, not deleted, or big."""

    CLEANING = "cleaning"
    DELETION = "deletion"
    SIZE = "size"


class PredicateResult(enum.StrEnum):
    """The outcome of a predicate."""

    PASSES = "passes"  # it passes
    BLOCKS = "blocks"  # it blocks
    TELLS = "tells"  # a fact that decides nothing by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One predicate of a decision, or one part of a size."""

    about: About
    code: str  # stable code of the predicate
    verdict: PredicateResult
    text: str  # the same for a person, with the numbers
    facts: Mapping[str, Number] = field(default_factory=dict)
    # When it changes by itself, epoch milliseconds; None where time does not do it.
    until_ms: int | None = None
    until: str = ""  # the event that changes it; empty if none is needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer that follows from the predicates of one decision."""

    about: About
    is_due: bool  # whether something would be done now
    held_by: str | None  # code of the predicate that holds it back; None where it is due
    text: str
    # From when on it will be, if nothing is appended, epoch milliseconds; None where only an event
    # changes it, and where it is due.
    from_ms: int | None = None
    condition: str = ""  # the event; empty where none is needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why one partition is as it is."""

    # Answers about cleaning and deletion, in this order; the asked one first.
    answers: tuple[Answer, ...]
    statements: tuple[Statement, ...]  # all predicates, in the order in which Kafka asks
    after_recovery: tuple[Answer, ...] = ()


def blocks(
    about: About,
    code: str,
    text: str,
    *,
    until: str = "",
    until_ms: int | None = None,
    **facts: Number,
) -> Statement:
    """Return a predicate that stands in the way."""
    return Statement(
        about=about,
        code=code,
        verdict=PredicateResult.BLOCKS,
        text=text,
        facts=facts,
        until=until,
        until_ms=until_ms,
    )


def passes(about: About, code: str, text: str, **facts: Number) -> Statement:
    """Return a predicate that does not stand in the way."""
    return Statement(about=about, code=code, verdict=PredicateResult.PASSES, text=text, facts=facts)


def tells(about: About, code: str, text: str, **facts: Number) -> Statement:
    """Return a fact."""
    return Statement(about=about, code=code, verdict=PredicateResult.TELLS, text=text, facts=facts)


def held_back(statement: Statement) -> Answer:
    """Return the answer where one predicate alone holds it back."""
    return Answer(
        about=statement.about,
        is_due=False,
        held_by=statement.code,
        text=statement.text,
        from_ms=statement.until_ms,
        condition=statement.until,
    )


def held_until_recovery(after: Explanation, code: str, text: str, until: str) -> Explanation:
    """Return the explanation before a recovery from the one after it.

    Args:
        code: Why there has to be one, as the stable code of a predicate.
        text: The same for a person.
        until: The event that ends the wait.
    """

    def told(answer: Answer) -> str:
        if answer.is_due:
            return f"due: {answer.text}"
        when = f"; will be: when {answer.condition}" if answer.condition else ""
        return f"not due ({answer.held_by}): {answer.text}{when}"

    return Explanation(
        answers=tuple(
            Answer(
                about=answer.about,
                is_due=False,
                held_by=code,
                text=f"{text}; after a recovery it would be {told(answer)}",
                condition=until,
            )
            for answer in after.answers
        ),
        statements=(
            *(blocks(answer.about, code, text, until=until) for answer in after.answers),
            *after.statements,
        ),
        after_recovery=after.answers,
    )


def unknowable(code: str, text: str, until: str) -> Explanation:
    """Return the explanation of a partition without decisions: nothing is done.

    Args:
        code: Why, as a stable code.
        text: The same for a person.
        until: The event that changes it.
    """
    both = (About.CLEANING, About.DELETION)
    return Explanation(
        answers=tuple(
            Answer(about=about, is_due=False, held_by=code, text=text, condition=until)
            for about in both
        ),
        statements=tuple(blocks(about, code, text, until=until) for about in both),
    )
