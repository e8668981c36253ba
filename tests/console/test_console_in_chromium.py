"""Every page in a real browser: accessible in both themes, within a phone's width, without a violation of the policy.

HOLDFAST_SCREENSHOTS=1 writes a picture of every page to docs/images/console: light and dark, desktop and phone.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from tests.console.browsing import DESKTOP, PHONE, Tab, axe, axe_violations, needs_chromium, tab
from tests.console.scene import TABLE, Scene

PICTURES = Path(__file__).parents[2] / "docs" / "images" / "console"
TokenOf = Callable[[str], Awaitable[str]]
pytestmark = [pytest.mark.more, needs_chromium]


def pages_of(scene: Scene) -> dict[str, str]:
    """Every page by the name of its picture."""
    return {
        "overview": "",
        "jobs": "jobs",
        "jobs-filtered": "jobs?f=state%3Afailed%20kind%3Aexports.run",
        "job-running": f"jobs/{scene.running}",
        "job-failed": f"jobs/{scene.failed}",
        "job-stale": f"jobs/{scene.stale}",
        "failures": "failures",
        "bulk": "bulk?action=retry&f=state%3Afailed",
        "pipelines": "pipelines",
        "pipeline": f"pipelines/{scene.pipeline}",
        "periodic": "periodic?name=lifecycle",
        "workers": "workers",
        "locks": "locks",
        "audit": "audit",
        "system": "system",
        "mappings": "mappings",
        "mapping": f"mappings/{scene.mapping}?from=1&to=2",
        "snapshots": "snapshots",
        "snapshot": f"snapshots/{scene.snapshot}",
        "graphs": "graphs",
        "graph": f"graphs/{scene.graph}",
        "graph-failed": f"graphs/{scene.graph - 2}",
        "graph-query": f"graphs/{scene.graph - 1}/query?q=MATCH%20(n)%20RETURN%20n",
        "graph-algorithms": f"graphs/{scene.graph - 1}/algorithms?algorithm=betweenness",
        "tables": "tables?search=sales",
        "table": f"tables/{TABLE.namespace}/{TABLE.name}",
        "table-policies": "table-policies",
        "table-policy": "table-policies/nightly-sales",
        "ingestion": "ingestion",
        "ingestion-job": f"ingestion/{scene.ingestion}",
        "ingestion-upload": "ingestion/upload",
        "confirm": f"act/job.cancel?job_id={scene.running}",
        "refused": "jobs/999999999",
    }


@pytest.mark.more
async def test_every_page_is_accessible_in_light_and_dark_and_fits_a_phone(
    app: FastAPI, site: str, scene: Scene, token_of: TokenOf, chromium: Any
) -> None:
    """Each page is loaded once. All rules are checked in light; in dark the one that depends on colours."""
    source, problems = axe(), list[str]()

    async def look(one: Tab, name: str, path: str) -> None:
        page = one.page
        await page.emulate_media(color_scheme="light")
        await one.open(path)
        problems.extend(f"{name}: {found}" for found in await axe_violations(page, source))
        await picture(page, f"{name}-light")
        await page.emulate_media(color_scheme="dark")
        problems.extend(f"{name} in dark: {found}" for found in await axe_violations(page, source, only="color-contrast"))
        await picture(page, f"{name}-dark")
        await page.set_viewport_size(PHONE)
        problems.extend(f"{name} overflows: {found}" for found in await one.overflow())
        await picture(page, f"{name}-dark-phone")
        await page.emulate_media(color_scheme="light")
        await picture(page, f"{name}-light-phone")
        await page.set_viewport_size(DESKTOP)

    async with tab(chromium, site, await token_of("admin"), viewport=DESKTOP, reduced_motion="reduce") as one:
        for name, path in pages_of(scene).items():
            await look(one, name, path)
        problems += await unprintable(one, scene)
    async with tab(chromium, site, "none", viewport=DESKTOP) as stranger:
        await look(stranger, "login", "login")

    problems += [f"policy: {found}" for found in (*one.violations, *stranger.violations)]
    assert not problems, "\n".join(problems)


async def unprintable(one: Tab, scene: Scene) -> list[str]:
    """What a printed job has that paper cannot use, or lacks: navigation, buttons, parts that scroll."""
    await one.open(f"jobs/{scene.running}")
    await one.page.emulate_media(media="print")
    shown = [name for name in (".side", ".actions", ".live") if await one.page.locator(name).first.is_visible()]
    cut = await one.page.evaluate(
        "() => [...document.querySelectorAll('pre, .log')].filter((one) => one.scrollHeight > one.clientHeight + 1).length"
    )
    lacks = [name for name in ("#timeline", "#log", "#payload") if not await one.page.locator(name).is_visible()]
    await one.page.emulate_media(media="null")
    return [f"printed: {found}" for found in (*shown, *lacks, *(["a part is cut off"] if cut else []))]


async def picture(page: Any, name: str) -> None:
    """Write a small picture, if pictures are wanted."""
    if os.environ.get("HOLDFAST_SCREENSHOTS"):
        PICTURES.mkdir(parents=True, exist_ok=True)
        width, height = page.viewport_size["width"], page.viewport_size["height"]  # a phone: as it is seen, with its fixed bar
        if width > PHONE["width"]:
            height = min(1500, await page.evaluate("() => document.documentElement.scrollHeight"))
        session = await page.context.new_cdp_session(page)
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        asked = {"format": "webp", "quality": 60, "clip": clip, "captureBeyondViewport": True}
        taken = await session.send("Page.captureScreenshot", asked)
        await session.detach()
        (PICTURES / f"{name}.webp").write_bytes(base64.b64decode(taken["data"]))
