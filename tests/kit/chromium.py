"""A headless Chromium for tests of pages, spoken to over a pipe: no port, no driver, no network.

The protocol is Chromium's own (DevTools), JSON messages that end in a zero byte. Debian's package
``chromium`` is one; tests are skipped by name where there is none.
"""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Self

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
# Chromium reads commands from the file descriptor 3, and answers on 4.
_WIRE: Final = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)
_ABOVE: Final = 10
_WIDTH: Final = 1100


def find_chromium() -> str | None:
    """Return the program, None where there is none."""
    return next((path for name in _NAMES if (path := shutil.which(name)) is not None), None)


class Chromium:
    """One browser with one page."""

    def __init__(self, program: str, folder: Path) -> None:
        """Start it.

        Args:
            folder: For its profile; not there yet.
        """
        self.messages: list[str] = []  # what the page's console and the browser's own log said
        self.requests: list[str] = []  # URLs that the page asked for
        self._events: list[dict[str, Any]] = []
        self._number = 0
        self._unread = b""
        self._session: str | None = None
        commands, self._write = map(_high, os.pipe())
        self._read, answers = map(_high, os.pipe())
        options = (
            *("--headless=new", "--remote-debugging-pipe", f"--user-data-dir={folder}"),
            *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
            *("--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
            # Of an account that may do everything its own sandbox wants nothing to do with.
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
        )
        wire = [sys.executable, "-c", _WIRE, str(commands), str(answers)]
        with (folder.parent / f"{folder.name}.log").open("wb") as log:
            self._process = subprocess.Popen(  # the browser that was asked for
                [*wire, program, *options], pass_fds=(commands, answers), stdout=log, stderr=log
            )
        os.close(commands)
        os.close(answers)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._hear(answer)

    def open(self, page: Path, *, scheme: str = "light", medium: str = "screen") -> None:
        """Open a page and wait until it is there; what was heard of others is forgotten."""
        self.show_as(scheme=scheme, medium=medium)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=_WIDTH,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        for heard in (self.messages, self.requests, self._events):
            heard.clear()
        self.call("Page.navigate", url=page.absolute().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._hear(self._next())

    def show_as(self, *, scheme: str = "light", medium: str = "screen") -> None:
        """Show the page light or dark, on a screen or on paper."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=medium, features=features)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def screenshot(self, height: int) -> bytes:
        """Return the page from its top to so many pixels below it, as PNG."""
        clip = {"x": 0, "y": 0, "width": _WIDTH, "height": height, "scale": 1}
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(answer["data"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            data = os.read(self._read, 1 << 16)
            if not data:
                raise EOFError("the browser has gone")
            self._unread += data
        message, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _hear(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Log.entryAdded":
                self.messages.append(parameters["entry"]["text"])
            case "Runtime.consoleAPICalled":
                self.messages.append(json.dumps(parameters["args"]))
            case "Runtime.exceptionThrown":
                self.messages.append(json.dumps(parameters["exceptionDetails"]))
            case str():
                self._events.append(event)


def _high(descriptor: int) -> int:
    """Return a file descriptor of the same file that is neither 3 nor 4."""
    other = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
    os.close(descriptor)
    return other
