"""`hf.greetings`"""


class Greetings:
    """The greetings of a control plane."""

    def __init__(self, api):
        self._api = api

    def list(self):
        """Every greeting."""
        return self._api.get("/api/greetings")
