"""The values of graphs that may change at run time: limits on count, memory and lifetime. Pure data."""

from __future__ import annotations

from typing import Final

from holdfast.jobs.config_keys import ConfigKey

PER_OWNER: Final = "concurrency.per_analyst"
TOTAL: Final = "concurrency.cluster_total"
OWNER_MEMORY: Final = "sizing.per_user_memory_gb"
TOTAL_MEMORY: Final = "sizing.cluster_memory_gb"
INSTANCE_MEMORY: Final = "sizing.instance_memory_gb"
DEFAULT_TTL: Final = "lifecycle.instance.default_ttl_minutes"
DEFAULT_INACTIVITY: Final = "lifecycle.instance.default_inactivity_minutes"
MAX_TTL: Final = "lifecycle.instance.max_ttl_minutes"

CONFIG_KEYS: Final[dict[str, ConfigKey]] = {
    PER_OWNER: ConfigKey(5, 1, 100, "Graph instances that one owner may have at once; suspended and failed ones are free."),
    TOTAL: ConfigKey(50, 1, 10_000, "Graph instances that all owners may have at once."),
    OWNER_MEMORY: ConfigKey(64, 2, 4096, "Memory of the graph instances of one owner, in GiB."),
    TOTAL_MEMORY: ConfigKey(256, 2, 65_536, "Memory of all graph instances, in GiB."),
    INSTANCE_MEMORY: ConfigKey(32, 2, 1024, "Memory that one graph instance may get, in GiB."),
    DEFAULT_TTL: ConfigKey(1440, 1, 525_600, "Minutes after which an instance is deleted, if its creator sets no TTL."),
    DEFAULT_INACTIVITY: ConfigKey(240, 1, 525_600, "Minutes without a query after which an instance is deleted, likewise."),
    MAX_TTL: ConfigKey(10_080, 1, 525_600, "The longest TTL of an instance, in minutes; extending it counts."),
}
