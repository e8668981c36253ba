"""`python -m holdfast`, and the command `holdfast`."""

import sys

from holdfast.extras import MissingExtra, loaded
from holdfast.process_exit import exit_code_of, exit_process


def program() -> None:
    """Run the command line and end the process. Without the extra `cli`, print how to install it and exit 1."""
    try:
        loaded("holdfast.cli", extra="cli").main()
    except MissingExtra as missing:
        sys.stderr.write(f"error: {missing}\n")
        exit_process(1)
    except SystemExit as ending:
        exit_process(exit_code_of(ending))
    exit_process(0)


if __name__ == "__main__":
    program()
