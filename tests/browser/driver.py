"""Drive a real headless Chromium: its own protocol over two pipes, nothing to install for it.

`Browser` starts one, `Browser.open` gives a `Page` in a context of its own. A page keeps everything
that a page must not do: requests, messages on the console, errors, violations of its policy.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

__all__ = ["Browser", "BrowserError", "Page", "find_browser", "first_paint"]

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # the tests may run as root, and open only pages that they made
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--disable-quic",
    "--hide-scrollbars",
    "--mute-audio",
    "--remote-debugging-pipe",
)
_KEYS: Final[Mapping[str, tuple[int, str]]] = {
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    "ArrowUp": (38, ""),
    "ArrowDown": (40, ""),
    "ArrowLeft": (37, ""),
    "ArrowRight": (39, ""),
    "Home": (36, ""),
    "End": (35, ""),
    "PageUp": (33, ""),
    "PageDown": (34, ""),
    "Tab": (9, ""),
}
_LIMIT: Final = 60.0


class BrowserError(Exception):
    """The browser did not start, refused a command or did not answer."""


def find_browser() -> str | None:
    """The path of a Chromium, or None; ``HPX_BROWSER`` names one, or none where it is empty."""
    named = os.environ.get("HPX_BROWSER")
    if named is not None:
        return named or None
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
    """One headless Chromium. Use it as a context: it ends with all that it started.

    Args:
        path: The program; the first one found if not given.

    Raises:
        BrowserError: There is none, or it does not start.
    """

    def __init__(self, path: str | None = None) -> None:
        program = path or find_browser()
        if program is None:
            raise BrowserError("there is no Chromium (Debian: apt-get install chromium)")
        self._profile = tempfile.TemporaryDirectory(
            prefix="hpx-browser-", ignore_cleanup_errors=True
        )
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # The browser reads from 3 and writes to 4; neither may be one of the two on the way there.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser, from_browser)]
        os.close(to_browser)
        os.close(from_browser)

        def wire() -> None:
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            [program, *_FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=wire,  # two calls of the system, no lock
            pass_fds=(3, 4),
            start_new_session=True,
        )
        for end in ends:
            os.close(end)
        self._answers: dict[int, dict[str, Any]] = {}
        self._pages: dict[str, Page] = {}
        self._next = 0
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and remove its profile."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(10)
        os.close(self._out)
        os.close(self._in)
        self._profile.cleanup()

    def open(
        self, page: Path | None = None, *, width: int = 1400, height: int = 900, dark: bool = False
    ) -> Page:
        """A new window, with a page in it if one is given."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)[
            "targetId"
        ]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        made = Page(self, session, context)
        self._pages[session] = made
        for domain in ("Page", "Runtime", "Log", "Network", "Performance"):
            made.call(f"{domain}.enable")
        made.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        made.call("Emulation.setEmulatedMedia", features=[scheme])
        if page is not None:
            made.go(page)
        return made

    def call(self, method: str, *, session: str | None = None, **params: object) -> dict[str, Any]:
        """One command of the protocol and its answer.

        Raises:
            BrowserError: It is refused, or there is no answer in a minute.
        """
        with self._news:
            self._next += 1
            number = self._next
        message: dict[str, object] = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        with self._news:
            if not self._news.wait_for(lambda: number in self._answers or self._ended, _LIMIT):
                raise BrowserError(f"no answer to {method} in {_LIMIT:.0f} s")
            if number not in self._answers:
                raise BrowserError(f"the browser ended before it answered to {method}")
            answer = self._answers.pop(number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error'].get('message')}")
        result = answer["result"]
        assert isinstance(result, dict)
        return result

    def _read(self) -> None:
        left = b""
        while True:
            try:
                data = os.read(self._in, 1 << 20)
            except OSError:
                data = b""
            if not data:
                break
            *messages, left = (left + data).split(b"\0")
            for text in messages:
                message = json.loads(text)
                with self._news:
                    if "id" in message:
                        self._answers[message["id"]] = message
                    elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
                        page.take(message["method"], message["params"])
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


class Page:
    """One window.

    Attributes:
        requests: The address of everything that was asked for, the page itself first.
        complaints: Messages on the console, uncaught errors, what the policy refused.
        dialogs: The texts of dialogs that opened.
    """

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser = browser
        self._session = session
        self._context = context
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.dialogs: list[str] = []
        self._loaded = False

    def take(self, method: str, params: dict[str, Any]) -> None:
        """Note an event; the browser's reader calls this."""
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.consoleAPICalled":
            said = " ".join(str(a.get("value", a.get("description"))) for a in params["args"])
            self.complaints.append(f"console.{params['type']}: {said}")
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            text = details.get("exception", {}).get("description", details["text"])
            self.complaints.append(f"error: {text}")
        elif method == "Log.entryAdded":
            self.complaints.append(f"{params['entry']['source']}: {params['entry']['text']}")
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(params["message"])
        elif method == "Page.loadEventFired":
            self._loaded = True

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """One command to this page; see `Browser.call`."""
        return self._browser.call(method, session=self._session, **params)

    def go(self, page: Path) -> None:
        """Open a file and wait until it has loaded."""
        self._loaded = False
        failed = self.call("Page.navigate", url=page.absolute().as_uri()).get("errorText")
        if failed:
            raise BrowserError(f"{page}: {failed}")
        self._until(lambda: self._loaded, f"{page.name} loads")

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited.

        Raises:
            BrowserError: It raised an error.
        """
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait(self, script: str, limit: float = 10.0) -> None:
        """Until an expression in the page is true.

        Raises:
            BrowserError: It is not, for that many seconds.
        """
        self._until(lambda: bool(self.evaluate(f"Boolean({script})")), script, limit)

    def _until(self, done: Any, what: str, limit: float = _LIMIT) -> None:
        end = time.monotonic() + limit
        while not done():
            if time.monotonic() > end:
                raise BrowserError(f"not in {limit:.0f} s: {what}")
            time.sleep(0.02)

    def texts(self, selector: str) -> list[str]:
        """The text of every element, in order."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})]"
        texts = self.evaluate(f"{found}.map((element) => element.textContent)")
        assert isinstance(texts, list)
        return texts

    def text(self, selector: str) -> str:
        """The text of the first element; empty if there is none."""
        return next(iter(self.texts(selector)), "")

    def click(self, selector: str, text: str = "") -> None:
        """Press the mouse on the first element, or on the first one with this text in it.

        Raises:
            BrowserError: There is none.
        """
        place = self.evaluate(
            f"""(() => {{
              const found = [...document.querySelectorAll({json.dumps(selector)})]
                .find((element) => element.textContent.includes({json.dumps(text)}));
              if (!found) return null;
              found.scrollIntoView({{block: 'nearest'}});
              const box = found.getBoundingClientRect();
              return [box.x + Math.min(box.width / 2, 40), box.y + box.height / 2];
            }})()"""
        )
        if place is None:
            raise BrowserError(f"there is no {selector} with {text!r}")
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=place[0],
                y=place[1],
                button="left",
                clickCount=1,
            )

    def press(self, key: str) -> None:
        """Press one key, such as ``Enter``, ``ArrowDown`` or ``/``."""
        code, text = _KEYS.get(key, (ord(key[0].upper()), key))
        said: dict[str, object] = {"key": key, "windowsVirtualKeyCode": code}
        down = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **said, **down)
        self.call("Input.dispatchKeyEvent", type="keyUp", **said)

    def write(self, text: str) -> None:
        """Put text where the cursor is."""
        self.call("Input.insertText", text=text)

    def choose(self, selector: str, value: str) -> None:
        """Choose one of a list, or set a field, as a person would."""
        self.evaluate(
            f"""(() => {{
              const field = document.querySelector({json.dumps(selector)});
              field.value = {json.dumps(value)};
              field.dispatchEvent(new Event('input', {{bubbles: true}}));
              field.dispatchEvent(new Event('change', {{bubbles: true}}));
            }})()"""
        )

    def search(self, text: str) -> None:
        """Put a text into the search of the page and wait for what it finds."""
        self.choose("#search", text)
        self.wait(f"document.querySelector('#count').dataset.query === {json.dumps(text)}")

    def allow_clipboard(self) -> None:
        """Let the page write the clipboard, and the test read it."""
        self._browser.call(
            "Browser.grantPermissions",
            permissions=["clipboardReadWrite", "clipboardSanitizedWrite"],
            browserContextId=self._context,
        )

    def picture(self, path: Path) -> Path:
        """What a person sees, as a PNG."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
        return path

    def close(self) -> None:
        """Close the window."""
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)
        self._browser._pages.pop(self._session, None)


def first_paint(browser: Browser, page: Path, *, limit: float = 30.0) -> float:
    """Seconds from the beginning of the load until rows are painted.

    The page marks the moment at which its rows are made; a frame later they are on the screen, and
    the browser's first paint may be earlier, with what stands above the rows.

    Raises:
        BrowserError: Nothing is painted within ``limit`` seconds, or the page has no rows.
    """
    window = browser.open(page)
    try:
        window.wait("performance.getEntriesByName('first-contentful-paint')[0]", limit)
        window.wait("document.querySelector('.row')", limit)
        times = window.evaluate(
            "['first-contentful-paint', 'rows']"
            ".map((name) => performance.getEntriesByName(name)[0].startTime)"
        )
        return float(max(times)) / 1000
    finally:
        window.close()
