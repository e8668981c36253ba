"""Play the demo and write docs/images/demo.svg, the picture in the README: `python docs/record_demo.py`."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI, TerminalTheme

from holdfast.apps import demo
from holdfast.apps.database import running_database
from holdfast.apps.migrate import bring_up_to_date
from holdfast.settings import Settings

IMAGE = Path(__file__).parent / "images" / "demo.svg"
THEME: TerminalTheme = MONOKAI

# Rich's own frame loads a web font; this one uses the fonts of the reader.
FRAME = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
    <!-- Written by docs/record_demo.py -->
    <style>
    .{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
    {lines}
    </defs>
    <rect fill="#0c0c0c" x="1" y="1" width="{terminal_width}" height="{terminal_height}" rx="8"/>
    <g transform="translate(9, 9)" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
    </g>
</svg>
"""


def record() -> bool:
    """Play the demo on a new embedded Postgres; whether its result was correct, and the image is written."""
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "out.txt").open("w") as out:
        console = Console(record=True, width=104, file=out, highlight=False)
        settings = Settings(database_url=None, data_dir=Path(folder) / "data")
        with running_database(settings, Console(file=out)) as running:
            bring_up_to_date(running.url)
            is_right = asyncio.run(demo.play(running.url, console))
    if is_right:
        IMAGE.write_text(console.export_svg(title="", theme=THEME, code_format=FRAME, unique_id="demo"))
    return is_right


if __name__ == "__main__":
    raise SystemExit(0 if record() else "the demo's result was wrong; the image is unchanged")
