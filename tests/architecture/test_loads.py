"""What a program loads when it starts."""

from __future__ import annotations

import subprocess
import sys

WEB = ("fastapi", "starlette", "uvicorn")

SCHEDULER = """
import sys
import holdfast.apps.scheduler
from holdfast import catalog
from holdfast.settings import settings
loops = catalog.loops(settings())
print(len(loops), *(name for name in {web!r} if name in sys.modules))
"""


def test_scheduler_loads_no_web_framework():
    program = SCHEDULER.format(web=WEB)

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    count, *loaded = done.stdout.split()
    assert int(count) > 0
    assert loaded == []
