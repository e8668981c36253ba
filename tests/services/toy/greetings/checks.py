"""What `holdfast doctor` checks for greetings."""

from holdfast.toolkit.cli.finding import ok


def checks(settings):
    """Whether the word is set."""
    yield ok("greetings", f"people are greeted with {settings.greeting_word}")
