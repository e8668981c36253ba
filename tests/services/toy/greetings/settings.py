"""The setting of greetings."""

from pydantic import Field

from holdfast.settings import Settings, settings_as


class GreetingsSettings(Settings):
    """How people are greeted."""

    greeting_word: str = Field(default="Hello", description="First word of a greeting.")


def greetings_settings() -> GreetingsSettings:
    """The settings of this process."""
    return settings_as(GreetingsSettings)
