"""Many small requests of one task, several on their way at once, answers in order.

An object store answers in tens of milliseconds however little is asked: a task that waits for each
answer before it asks the next question is idle nearly all of the time.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Final, TypeVar

# Requests that one task has on their way. Object stores take thousands a second and prefix.
AT_ONCE: Final = 16

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def map_ahead(
    work: Callable[[Item], Answer], items: Iterable[Item], *, at_once: int = AT_ONCE
) -> Iterator[Answer]:
    """Yield what work returns for each item, in the order of the items.

    Items are taken from their iterator by this thread alone, and no more of them than are on their
    way, so that neither items nor answers pile up.

    Args:
        work: Called in other threads; what it raises is raised here.
        items: Any number.
        at_once: How many calls may run at the same time.
    """
    iterator = iter(items)
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        waiting: deque[Future[Answer]] = deque(
            pool.submit(work, item) for item in islice(iterator, at_once)
        )
        while waiting:
            answer = waiting.popleft().result()
            waiting.extend(pool.submit(work, item) for item in islice(iterator, 1))
            yield answer
