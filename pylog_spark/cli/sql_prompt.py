"""The prompt of ``pylog sql``: queries of several lines, with history and completion.

It is Python's own ``input`` with GNU readline, or libedit where Python has that: neither takes time
to import, and each has the keys of a person's shell.
"""

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from typer import echo

from pylog_spark.cli.error_text import report_error, write_line
from pylog_spark.cli.sql_tables import quoted_where_needed
from storage_core import interruption
from storage_core.errors import PylogError

_FIRST: Final = "sql> "
_NEXT: Final = "...> "
_LEAVE: Final = frozenset({r"\q", "quit", "exit", ".quit", ".exit"})
_COMMANDS: Final = {
    ".tables": "list the tables",
    ".columns": "list the columns of each table, or of those that are named",
    ".help": "list these commands",
    r"\q": "leave; so does Ctrl-D. Ctrl-C cancels a query",
}
_WORDS: Final = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN"),
    *("USING", "ON", "AND", "OR", "NOT", "AS", "BETWEEN", "IN", "IS NULL", "LIKE", "DESC", "WITH"),
    *("DISTINCT", "CASE", "WHEN", "THEN", "ELSE", "END", "UNION ALL", "count(*)", "sum(", "max("),
    *("min(", "avg(", "TIMESTAMPTZ '"),
)
_DELIMITERS: Final = " \t\n,;()=<>'"
_KEPT_LINES: Final = 1000
_WAKE_SECONDS: Final = 0.1
_HEARD_SECONDS: Final = 1.0

# The columns of each table, by name.
Columns = Mapping[str, Sequence[str]]


def run_prompt(
    answer: Callable[[str], object], columns_of: Callable[[], Columns], cancel: Callable[[], object]
) -> None:
    """Answer queries that a person types, until he leaves.

    Args:
        answer: Shows the rows of a query.
        columns_of: Returns the tables there are.
        cancel: Ends the query that is being answered; called by another thread.
    """
    echo("SQL, ended by a semicolon; .help lists other commands")
    heard = threading.Event()
    main = threading.get_ident()

    def wake_editor() -> None:
        """Let the editor see a Ctrl-C that came just before it began to wait for a key: to readline
        of Python this signal is a change of the window's size, after which it looks for others."""
        heard.set()
        time.sleep(_WAKE_SECONDS)
        signal.pthread_kill(main, signal.SIGWINCH)

    # Also between one query and the next: Ctrl-C is heard by another thread, which may be late.
    with interruption.cancelled_by(wake_editor), _line_editor(columns_of) as keep_history:
        for text in _typed(heard):
            command = text.strip()
            if command in _LEAVE:
                return
            if command.startswith((".", "\\")):
                _do(command, columns_of)
                continue
            keep_history()
            _answer(text, answer, cancel)
    echo("")


def _typed(heard: threading.Event) -> Iterator[str]:
    """Yield what is typed: a command of one line, or a query.

    Args:
        heard: The other thread sets it when it hears of a Ctrl-C.
    """
    lines: list[str] = []
    while True:
        try:
            with _raising_interrupts():
                line = input(_NEXT if lines else _FIRST)
        except EOFError:
            return
        except KeyboardInterrupt:
            # Else it could hear of this one when the next query is being answered.
            heard.wait(_HEARD_SECONDS)
            heard.clear()
            lines.clear()
            echo("")
            continue
        if not lines and (line.strip() in _LEAVE or line.lstrip().startswith((".", "\\"))):
            yield line
        elif lines or line.strip():
            lines.append(line)
            if sqlite3.complete_statement("\n".join(lines)):
                text = "\n".join(lines)
                lines.clear()
                yield text


def _answer(text: str, answer: Callable[[str], object], cancel: Callable[[], object]) -> None:
    is_cancelled = False

    def note() -> None:
        nonlocal is_cancelled
        is_cancelled = True
        cancel()

    try:
        with interruption.cancelled_by(note):
            answer(text)
    except Exception as error:
        if is_cancelled:
            write_line("cancelled")
        elif isinstance(error, PylogError):
            report_error(error, debug=False)
        else:
            raise


def _do(command: str, columns_of: Callable[[], Columns]) -> None:
    match command.split():
        case [".help"]:
            for name, meaning in _COMMANDS.items():
                echo(f"{name:9} {meaning}")
        case [".tables"]:
            for table in columns_of():
                echo(quoted_where_needed(table))
        case [".columns", *named]:
            for table, columns in columns_of().items():
                if not named or {table, quoted_where_needed(table)} & set(named):
                    echo(f"{quoted_where_needed(table)} ({', '.join(columns)})")
        case _:
            write_line(f"there is no command {command}; .help lists them")


@contextmanager
def _raising_interrupts() -> Iterator[None]:
    """Let Ctrl-C end what is being typed."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _line_editor(columns_of: Callable[[], Columns]) -> Iterator[Callable[[], None]]:
    """Give ``input`` keys, completion and history; the function writes the history."""
    try:
        import readline  # noqa: PLC0415  # not every Python has it
    except ImportError:
        yield lambda: None  # without keys of its own a terminal has only its own
        return
    history = _open_history(readline)
    readline.set_history_length(_KEPT_LINES)
    readline.set_completer_delims(_DELIMITERS)
    readline.set_completer(_completer(columns_of))
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")

    def keep() -> None:
        if history is not None:
            with suppress(OSError):
                readline.write_history_file(history)

    try:
        yield keep
    finally:
        readline.set_completer(None)


def _open_history(readline: Any) -> Path | None:
    """Read the file of earlier lines, which is this user's alone; None where there can be none."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    file = Path(state).expanduser() / "pylog" / "sql_history"
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        readline.read_history_file(file)
    except (OSError, RuntimeError) as error:
        write_line(f"{file}: what you type is not kept: {error}")
        return None
    return file


def _completer(columns_of: Callable[[], Columns]) -> Callable[[str, int], str | None]:
    found: list[str] = []

    def complete(text: str, number: int) -> str | None:
        nonlocal found
        if number == 0:
            found = complete_word(text, columns_of())
        return found[number] if number < len(found) else None

    return complete


def complete_word(text: str, columns: Columns) -> list[str]:
    """Return the words that begin so: commands, SQL's, tables and columns."""
    names = [*columns, *dict.fromkeys(name for of_table in columns.values() for name in of_table)]
    words = {name: quoted_where_needed(name) for name in names}
    words |= {word: word for word in (*_COMMANDS, *_WORDS)}
    begin = text.removeprefix('"').lower()
    is_quoted = text.startswith('"')
    return [
        word
        for name, word in words.items()
        if name.lower().startswith(begin) and (word.startswith('"') or not is_quoted)
    ]
