"""`python -m holdfast`, and the command `holdfast`."""

from holdfast.cli import main
from holdfast.process_exit import exit_code_of, exit_process


def program() -> None:
    """Run the command line and end the process."""
    try:
        main()
    except SystemExit as ending:
        exit_process(exit_code_of(ending))
    exit_process(0)


if __name__ == "__main__":
    program()
