"""Text, reasons and models of request bodies. Without a web framework."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _storable(text: str) -> str:
    if "\x00" in text:
        raise ValueError("a NUL character cannot be stored")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a lone surrogate is not valid text") from None
    return text


BIGGEST_ID = 2**63 - 1024  # the largest bigint that a JSON number in the OpenAPI document represents exactly
JobNumber = Annotated[int, Field(ge=1, le=BIGGEST_ID)]
Small = Annotated[int, Field(ge=1, le=1000)]
Text = Annotated[str, AfterValidator(_storable)]  # text that Postgres can store
Reason = Annotated[Text, Field(min_length=1, max_length=500, description="The reason; it is recorded in the audit log.")]


class Model(BaseModel):
    """A request body; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Because(Model):
    """The body of an action that needs only a reason."""

    reason: Reason
