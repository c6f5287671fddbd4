"""An Airflow task that is one ``pylog`` command.

Needs Airflow 3 and nothing of this project but its program, which may live in an environment of its
own (``program="/opt/pylog/bin/pylog"``): the two need not agree on a single library.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

_DONE: Final = 0
_FINDINGS: Final = 1
# Wrong usage or config, and a guard that refused: the same again would end the same.
_FOR_A_PERSON: Final = {
    2: "wrong usage or config: nothing was touched",
    3: "a guard refused: look at the reasons above",
}
# The others help themselves by a second run, which goes on where the first one stopped.
_FOR_ANOTHER_TRY: Final = {
    4: "some partitions failed, the others are done",
    5: "storage or Spark failed",
    130: "interrupted",
    143: "terminated",
}


class PylogOperator(BaseOperator):
    """Runs ``pylog ARGUMENTS`` and ends as its exit status means.

    0 succeeds. 1 (findings) succeeds, with a warning in the log and ``{"findings": true}`` as XCom.
    2 and 3 fail at once: a person has to decide. Every other status fails, and is tried again as
    often as ``retries`` says. A task that is killed hands SIGTERM to the program, which then ends
    its run in order.

    Args:
        arguments: The command and its options, templated; words that render to nothing are left
            out.
        env: The environment of the process; None for that of the worker.
    """

    template_fields: Sequence[str] = ("arguments", "program", "env")

    def __init__(
        self,
        *,
        arguments: Sequence[str],
        program: str = "pylog",
        env: Mapping[str, str] | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(**rest)
        self.arguments = list(arguments)
        self.program = program
        self.env = None if env is None else dict(env)
        self._process = SubprocessHook()

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002  # Airflow hands it over
        """Run the command."""
        words = [word for word in self.arguments if word]
        result = self._process.run_command([self.program, *words], env=self.env)
        status = result.exit_code
        if status == _FINDINGS:
            self.log.warning("pylog %s: there are findings, see above", self.arguments[0])
        if status in {_DONE, _FINDINGS}:
            return {"exit_code": status, "findings": status == _FINDINGS}
        if status in _FOR_A_PERSON:
            raise AirflowFailException(f"exit status {status}: {_FOR_A_PERSON[status]}")
        why = _FOR_ANOTHER_TRY.get(status, "the program did not end by itself")
        raise AirflowException(f"exit status {status}: {why}")

    def on_kill(self) -> None:
        """Ask the program to end."""
        self._process.send_sigterm()
