"""A helper process of a benchmark: one line of JSON in, one line out, until its input ends.

It stays from round to round, so that a JVM in it is warm.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.bench.shared import ROOT

Order = dict[str, Any]


@contextmanager
def helper(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[Callable[[Order], Order]]:
    """Start a module as a process, and give what has it do an order and return the answer.

    Args:
        environment: Its environment; None for that of this process.
    """
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=None if environment is None else dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        orders, answers = process.stdin, process.stdout
        assert orders is not None
        assert answers is not None

        def ask(order: Order) -> Order:
            orders.write(json.dumps(order) + "\n")
            orders.flush()
            line = answers.readline()
            if not line:
                raise AssertionError(f"{module} ended: its errors stand above")
            return dict(json.loads(line))

        yield ask
        orders.close()


def serve(work: Callable[[Order], Order]) -> None:
    """Do the orders of standard input; nothing else of this process may write its output."""
    for line in sys.stdin:
        print(json.dumps(work(json.loads(line))), flush=True)  # noqa: T201 - the answer
