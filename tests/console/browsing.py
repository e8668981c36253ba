"""A real Chromium for tests: Debian's, or the one that HOLDFAST_TEST_CHROMIUM names. Without one the tests are skipped.

Tests in a browser are marked `more`: `make test` needs no browser, `make test-more` and CI run them.

One Chromium serves all tests of a process; each test connects to it and has contexts of its own.

axe-core is not in this repository: HOLDFAST_TEST_AXE names its file, or it is fetched once into the cache folder of the user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("HOLDFAST_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run", "--disable-extensions", "--disable-default-apps", "--disable-dev-shm-usage"),
    *("--hide-scrollbars", "--mute-audio", "--force-color-profile=srgb", "--remote-debugging-port=0"),
    *("--disable-quic", "--disable-features=Translate,MediaRouter,OptimizationHints"),
)
DESKTOP, PHONE = {"width": 1360, "height": 860}, {"width": 375, "height": 740}
AXE_VERSION = "4.14.0"
PATIENCE = 60_000  # milliseconds: for a busy machine

needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="no chromium: install Debian's, or set HOLDFAST_TEST_CHROMIUM")


@contextmanager
def chromium_process(folder: Path) -> Iterator[str]:
    """Chromium with a new profile in this folder; the address at which tests connect to it."""
    process = subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    port, deadline = folder / "DevToolsActivePort", time.monotonic() + PATIENCE / 1000
    try:
        while not (port.exists() and port.read_text().count("\n")):
            assert process.poll() is None, "chromium did not start"
            assert time.monotonic() < deadline, "chromium has no port yet"
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port.read_text().split()[0]}"
    finally:
        process.terminate()
        process.wait(60)


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Any]:
    """A connection to the browser; its contexts end with the block."""
    playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.connect_over_cdp(address)
        try:
            yield browser
        finally:
            await browser.close()


class Tab:
    """A page of a browser, with what its console said."""

    def __init__(self, page: Any, site: str) -> None:
        self.page, self.site = page, site
        self.said: list[str] = []
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.set_default_timeout(PATIENCE)

    async def open(self, path: str) -> None:
        await self.page.goto(f"{self.site}/console/{path}")

    @property
    def violations(self) -> list[str]:
        """What the content security policy refused, and errors of scripts."""
        refused = [line for line in self.said if "Content Security Policy" in line]
        return [*refused, *(line for line in self.said if line.startswith("error:") and "Failed to load" not in line)]

    async def overflow(self) -> list[str]:
        """Elements that reach beyond the window, unless something around them scrolls."""
        found: list[str] = await self.page.evaluate(
            """() => [...document.querySelectorAll("body *")].filter((one) => {
                if (one.closest(".scroll, .graph, pre, .log, .hidden, .skip, svg, dialog")) return false;
                const box = one.getBoundingClientRect();
                return box.width && (box.right > innerWidth + 1 || document.documentElement.scrollWidth > innerWidth);
            }).slice(0, 5).map((one) => one.outerHTML.slice(0, 120))"""
        )
        return found


@asynccontextmanager
async def tab(chromium: Any, site: str, token: str, **context: Any) -> AsyncIterator[Tab]:
    """A tab that is signed in with this token; with "none" it is not."""
    opened = await chromium.new_context(**context)
    try:
        if token != "none":
            answer = await opened.request.post(f"{site}/console/login", form={"token": token}, max_redirects=0)
            assert answer.status == 303, await answer.text()
        yield Tab(await opened.new_page(), site)
    finally:
        await opened.close()


def axe() -> str:
    """The source of axe-core; skips the test if it cannot be fetched."""
    given = os.environ.get("HOLDFAST_TEST_AXE")
    if given:
        return Path(given).read_text()
    kept = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "holdfast-tests" / f"axe-core-{AXE_VERSION}.js"
    if not kept.exists():
        _fetch(kept)
    return kept.read_text()


def _fetch(kept: Path) -> None:
    if not shutil.which("npm"):
        pytest.skip("no axe-core: set HOLDFAST_TEST_AXE, or install npm, which fetches it once")
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["npm", "pack", "--silent", f"axe-core@{AXE_VERSION}"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if packed.returncode:
            pytest.skip(f"axe-core cannot be fetched: {packed.stderr.strip()[-200:]}")
        with tarfile.open(Path(folder) / packed.stdout.strip().splitlines()[-1]) as archive:
            found = archive.extractfile("package/axe.min.js")
            assert found is not None
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(found.read())


async def axe_violations(page: Any, source: str, *, only: str = "") -> list[str]:
    """What axe-core finds by the rules of WCAG 2.0 to 2.2, A and AA; with `only` by one rule."""
    which = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
    options = {
        "runOnly": {"type": "rule", "values": [only]} if only else which,
        "resultTypes": ["violations"],
        "preload": False,
    }
    if not await page.evaluate("() => 'axe' in globalThis"):
        await page.evaluate(source)
    found = await page.evaluate("(options) => axe.run(document, options).then(({ violations }) => ({ violations }))", options)
    return [
        f"{one['id']}: {node['html'][:160]} — {node['failureSummary'][:300]}"
        for one in found["violations"]
        for node in one["nodes"][:3]
    ]
