"""The names of a job's attributes, and what a misspelt one may have meant."""
from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Any

ATTRIBUTES = frozenset("""args dedup_fallback deduplication_key deduplication_ttl delay delivery enqueue_ttl expires_at
    grace_period heartbeat_timeout id max_attempts meta options ordering ordering_key parent_id pending priority queue
    rate_limit result_ttl retry root_id scheduled_at schema specversion tags timeout total_timeout type unique version
    visibility_timeout""".split())
# Other names of these, and what the server adds to a job: the envelope that info() returns may be pushed again.
_ALSO = frozenset("""activated_at attempt cancelled_at checkpoint completed_at created_at deduplicated
    deduplicationFallback deduplicationKey deduplicationTtl deduplication_expires_at deduplication_ttl_ms delay_ms
    delay_until deliveries discarded_at enqueued_at error errors last_checkpoint lease_expires_at lease_id metadata
    next_attempt_at orderingKey parent_errors parent_results parent_results_truncated previous_state progress
    progress_data progress_message progress_updated_at result result_expires_at result_size_bytes result_stored_at
    retry_delay_ms seq started_at state tag taskDeduplicationFallback taskDeduplicationTtl timeout_ms
    visibility_timeout_ms worker workflow_callback workflow_id workflow_root_id workflow_step""".split())
KNOWN = ATTRIBUTES | _ALSO

_OF_OTHERS = {  # words of other queues
    "countdown": "delay", "defer_by": "delay", "eta": "scheduled_at", "run_at": "scheduled_at",
    "run_date": "scheduled_at", "schedule_at": "scheduled_at", "defer_until": "scheduled_at", "expires": "expires_at",
    "ttl": "expires_at", "max_retries": "max_attempts", "retries": "max_attempts", "attempts": "max_attempts",
    "job_id": "id", "task_id": "id", "job_key": "deduplication_key", "dedup_key": "deduplication_key",
    "idempotency_key": "deduplication_key", "queueing_lock": "unique", "lock": "ordering_key"}


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def suggestion(name: str, known: Iterable[str]) -> str:
    """': is it "delay"?', where a known name is near."""
    folded = {_folded(one): one for one in known}
    meant = folded.get(_folded(_OF_OTHERS.get(name, name)))
    near = difflib.get_close_matches(_folded(name), folded, 1, 0.75)
    meant = meant or (folded[near[0]] if near else None)
    return f': is it "{meant}"?' if meant else ""


def check_names(given: Iterable[Any], known: Collection[str], what: str, hint: str = "") -> None:
    for name in given:
        if name not in known:
            raise TypeError(f'{what} has no "{name}"{suggestion(str(name), known) or "."}{hint}')


def check_attributes(job: Iterable[Any]) -> None:
    for name in job:
        if name not in KNOWN:
            raise TypeError(f'a job has no attribute "{name}"{suggestion(str(name), ATTRIBUTES) or "."} '
                            "Attributes of your own go into options={...}")
