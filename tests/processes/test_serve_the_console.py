"""`holdfast serve` serves the console and prints its address; the link that works once leads there."""

from __future__ import annotations

from pathlib import Path

import httpx2

from serving import serving


def test_serve_prints_the_console_url_and_the_first_login_opens_it(database: str, tmp_path: Path) -> None:
    with serving(database, tmp_path) as served:
        address = f"{served.url}/console/"
        link = served._wait_for(r"\n *(http://\S+/login\?code=\S+)")  # the last thing that it prints
        said = served.log.read_text()
        with httpx2.Client(trust_env=False, timeout=60, headers={"Accept": "text/html"}) as browser:
            sent_on = browser.get(link)
            page = browser.get(address)
            bare = browser.get(f"{served.url}/console")

    assert f"The console is at {address}" in said
    assert (sent_on.status_code, sent_on.headers["Location"]) == (303, "/console/")
    assert "<h1>Overview</h1>" in page.text
    assert bare.headers["Location"] == "/console/"
