"""The description of greetings."""

from typing import Final

from holdfast.api.policy import MAKERS, READERS, Rule
from holdfast.api.problem_types import ProblemType
from holdfast.jobs.config_keys import ConfigKey
from holdfast.services.contract import Command, Kind, Namespace, Page, Service, Topic
from holdfast.services.registration import register

SERVICE: Final = register(
    Service(
        name="greetings",
        package="greetings",
        purpose="Greets people.",
        routes="api",
        actions={
            "greetings.read": Rule("read greetings", READERS),
            "greetings.create": Rule("create a greeting", MAKERS),
        },
        problems={"already-greeted": ProblemType(409, "Already greeted", "Greet another person.")},
        topics=(Topic("greeting", "topics:read"),),
        pages=(Page("greetings", "Greetings", "greetings.read", "pages:show", "Toys"),),
        console_actions="pages:ACTIONS",
        kinds=(Kind("greetings.write", public=True),),
        kinds_module="kinds",
        loops=("greetings_count",),
        loops_module="loops",
        settings="settings:GreetingsSettings",
        config_keys={"greetings.longest": ConfigKey(20, 1, 100, "Longest name that is greeted.")},
        events={"greeting_written": "A greeting was written."},
        metrics={"greetings_written_total": "Greetings that this process has written."},
        plane_metrics={"greetings": "Greetings in the database."},
        crash_points={"greeting.before_write": "A greeting is about to be written."},
        commands=(Command("greeting", "cli", "Greetings: list them.", plural="greetings"),),
        client=(Namespace("greetings", "client:Greetings"),),
        checks="checks",
        tables=("greetings", "greeting_ends"),
        migrations="migrations",
    )
)
