# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven by the DevTools protocol through two pipes.

It reaches only the loopback, and writes only to the folder of its test.
"""

import base64
import contextlib
import itertools
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any
from typing import Self

from acstor_common import errors
from tests.lab import runs

PROGRAM = "chromium"
DEADLINE_S = 60.0
STOP_DEADLINE_S = 15.0
POLL_S = 0.1
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--disable-default-apps", "--disable-extensions", "--mute-audio"),
    *("--hide-scrollbars", "--force-color-profile=srgb", "--no-proxy-server"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
)
_SHELL = 'exec 3<&"$0" 4>&"$1"; shift; exec "$@"'
"""Chromium reads requests from descriptor 3 and writes answers to descriptor 4."""


def is_installed() -> bool:
    """Return whether Chromium is installed."""
    return shutil.which(PROGRAM) is not None


class Browser:
    """Context manager: a browser with one page.

    :param folder: for its profile and its log
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._ids = itertools.count(1)
        self._rest = b""
        self._session = ""
        self._process: subprocess.Popen[bytes] | None = None
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        """Start it with an empty page."""
        to_browser, self._requests = os.pipe()
        self._answers, from_browser = os.pipe()
        argv = [PROGRAM, *_FLAGS, f"--user-data-dir={self._folder}/profile", "about:blank"]
        fds = (to_browser, from_browser)
        with (self._folder / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", _SHELL, *map(str, fds), *argv],
                **{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log},
                env={**os.environ, "HOME": str(self._folder)},
                pass_fds=fds,
                start_new_session=True,
            )
        for fd in fds:
            os.close(fd)
        with runs.on_failure(self.__exit__):
            self._attach()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            with contextlib.suppress(OSError, errors.Unusable):
                self._send("Browser.close", {}, "")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_DEADLINE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for fd in (self._requests, self._answers):
            os.close(fd)

    def _attach(self) -> None:
        page = next(
            target
            for target in self.call("Target.getTargets")["targetInfos"]
            if target["type"] == "page"
        )
        options = {"targetId": page["targetId"], "flatten": True}
        self._session = self.call("Target.attachToTarget", **options)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result; store events.

        :raises errors.Unusable: it failed, or Chromium does not answer
        """
        number = self._send(method, params, self._session)
        for message in self._messages(DEADLINE_S):
            if message.get("id") == number:
                if "error" in message:
                    raise errors.Unusable(f"Chromium: {method}", message["error"]["message"])
                return message["result"]
            self.events.append(message)
        raise errors.Unusable(f"Chromium: {method}", f"no answer within {DEADLINE_S:g} s")

    def _send(self, method: str, params: dict[str, Any], session: str) -> int:
        message: dict[str, Any] = {"id": next(self._ids), "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._requests, json.dumps(message).encode() + b"\0")
        return int(message["id"])

    def _messages(self, deadline_s: float) -> Iterator[dict[str, Any]]:
        """Yield messages until the deadline."""
        end_s = time.monotonic() + deadline_s
        while (left_s := end_s - time.monotonic()) > 0:
            whole, zero, rest = self._rest.partition(b"\0")
            if zero:
                self._rest = rest
                yield json.loads(whole)
            elif select.select([self._answers], [], [], left_s)[0]:
                data = os.read(self._answers, 1 << 20)
                if not data:
                    log = (self._folder / "chromium.log").read_text(errors="replace")
                    raise errors.Unusable("Chromium", f"it has ended: {log[-2000:]}")
                self._rest += data

    def open(self, url: str) -> None:
        """Navigate to a page."""
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression on the page.

        :raises errors.Unusable: it threw an exception
        """
        options = {"awaitPromise": True, "returnByValue": True}
        options["allowUnsafeEvalBlockedByCSP"] = False  # the page's content security policy applies
        found = self.call("Runtime.evaluate", expression=expression, **options)
        if "exceptionDetails" in found:
            why = found["exceptionDetails"].get("exception", {}).get("description", "")
            raise errors.Unusable(expression[:80], why)
        return found["result"].get("value")

    def wait_for(self, expression: str, deadline_s: float = DEADLINE_S) -> Any:
        """Wait until an expression is true; return its value.

        :raises errors.Unusable: it did not become true; has the page's text
        """
        end_s = time.monotonic() + deadline_s
        while not (found := self.evaluate(expression)):
            if time.monotonic() > end_s:
                text = self.evaluate("document.body.innerText")
                raise errors.Unusable(expression, f"it does not become true: {text}")
            time.sleep(POLL_S)
        return found

    def text(self, selector: str = "body") -> str:
        """Return the displayed text of an element."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """Click an element."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def type_into(self, selector: str, text: str) -> None:
        """Type a text into a field."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press_enter(self) -> None:
        """Press Enter in the focused field."""
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **key)

    def prefer(self, scheme: str) -> None:
        """Choose the colour scheme, ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def resize(self, width: int, height: int) -> None:
        """Resize the window."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def screenshot(self, path: pathlib.Path) -> None:
        """Write a PNG of the whole page."""
        whole = {"format": "png", "captureBeyondViewport": True, "optimizeForSpeed": False}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.call("Page.captureScreenshot", clip=clip, **whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def requests(self) -> list[dict[str, Any]]:
        """Return all requests of the page."""
        return [
            event["params"]["request"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Return exceptions, violations of the content security policy, and other errors."""
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"])[:500])
            if event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(f"{params['entry']['source']}: {params['entry']['text']}")
        return found
