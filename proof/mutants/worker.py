"""Mutants of scheduling: priority, prefetching, and penalties for jobs that never started. Called by: `kernel.py`."""

from __future__ import annotations

from typing import Any

from proof.mutants.mutations import Code, Mutant, Text


def _every_kind_is_short(original: Any) -> Any:
    class DurationEstimates(original):  # type: ignore[misc]
        def is_short(self, _: str) -> bool:
            return True

    return DurationEstimates


def _nothing_taken_back(original: Any) -> Any:
    class ClaimQueue(original):  # type: ignore[misc]
        def take_back(self, longer_than: float | None = None) -> Any:
            return super().take_back() if longer_than is None else []

    return ClaimQueue


WORKER_MUTANTS = (
    Mutant("claim-ignores-priority", "of the first jobs of each kind a claim takes the oldest",
           (Text("claim.CLAIM", "ORDER BY head.priority, head.id LIMIT", "ORDER BY head.id LIMIT"),), ("test_claim",)),
    Mutant("claim-ignores-priority-within-a-kind", "of the jobs of one kind a claim takes the oldest",
           (Text("claim.CLAIM", "ORDER BY priority, id LIMIT %(limit)s FOR UPDATE", "ORDER BY id LIMIT %(limit)s FOR UPDATE"),),
           ("test_claim",)),
    Mutant("every-kind-held-ahead", "long jobs are held ahead like short ones, while others have free lanes for them",
           (Code("worker.duration_estimates.DurationEstimates", _every_kind_is_short),)),
    Mutant("waiting-jobs-never-returned", "a beat does not return what waits for a lane for long",
           (Code("worker.claim_queue.ClaimQueue", _nothing_taken_back),)),
    Mutant("shutdown-fails-what-never-began", "a job that waited for a lane fails when its worker shuts down",
           (Text("release.RELEASE_WORKER", "(%(begun)s::bigint[] IS NULL OR fence_token = ANY (%(begun)s))",
                 "(%(begun)s::bigint[] IS NULL OR true)"),), ("test_release",)),
    Mutant("death-blames-what-never-began", "a job that waited for a lane pays for the death of its process",
           (Text("rescue.RESCUE_WORKER", "%(begun)s::bigint[] IS NULL OR fence_token = ANY (%(begun)s) AS begun",
                 "%(begun)s::bigint[] IS NULL OR true AS begun"),), ("test_rescue",)),
)  # fmt: skip
