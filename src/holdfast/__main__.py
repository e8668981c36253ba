"""`python -m holdfast`, and the command `holdfast`."""

import gc
import sys

from holdfast.extras import MissingExtra, loaded
from holdfast.process_exit import exit_code_of, exit_process

# New objects until the next search for garbage. By default it is 700. A start makes about 55,000, and nearly all of them stay.
RARELY = 100_000


def program() -> None:
    """Run the command line and end the process. Without the extra `cli`, print how to install it and exit 1."""
    code, usual = 0, gc.get_threshold()
    gc.set_threshold(RARELY)
    try:
        cli = loaded("holdfast.cli", extra="cli")
        if cli.is_program(sys.argv[1:]):
            gc.set_threshold(*usual)
        try:
            cli.main()
        except SystemExit as ending:
            code = exit_code_of(ending)
        if not cli.is_program(sys.argv[1:]):
            # The memory is freed with the process; looking for garbage first takes 0.2 s of CPU time. A program may have run
            # handlers of the user, whose objects may rely on their finalizers.
            gc.freeze()
    except MissingExtra as missing:
        sys.stderr.write(f"error: {missing}\n")
        code = 1
    exit_process(code)


if __name__ == "__main__":
    program()
