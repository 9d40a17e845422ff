"""words.py: the texts, numbers and names that test/fuzz/calls makes calls of."""

TEXTS = ["", " ", "x", "a.b", "*", "a.*", "default", "null", "0", "-1", "NaN", "é", "e\u0301", "\U0001f600", "\u0001",
    "\ufffe", "\\", "'", '"', "%", "%00", "../..", "x" * 129, "x" * 256, "x" * 5000, "\n", "{", "[]",
    "2030-01-01T00:00:00Z", "PT5S", "P100Y", "* * * * *", "0 0 30 2 *", "Europe/Berlin", "active", "completed",
    "9" * 40, "1e308", "true", "lease_0", "a@1", "urn:x:y"]
NUMBERS = [0, 1, -1, 2, 5, 10, 100, 101, 10001, 2147483647, -2147483648]
NAMES = """
 type args queue priority scheduled_at delay expires_at retry unique meta timeout deduplication_key deduplication_ttl
 id tags pending options max_attempts initial_interval max_interval backoff_coefficient jitter non_retryable_errors
 on_exhaustion keys args_keys meta_keys period states on_conflict rate_limit concurrency rate throttle on_limit limit
 job_id job_ids worker_id lease_id result error code message retryable details backtrace progress data jobs queues
 count visibility_timeout state labels name cron expression timezone overlap key filter before after older_than confirm
 reason enabled max_depth overflow block_timeout retention leases_durable default_retry allowed_types handler position
 hook ids atomic result_ttl schema version checkpoint value percent max_size events delivery specversion target
 dead_letter window deduplication paused job status leases seqs until ordering_key ordering orderingKey version versions
 uri mode handlers tag enqueue_ttl total_timeout heartbeat_timeout grace_period dedup_fallback unique_key metadata def
 steps callbacks depends_on workflow_id info directive release point place token producers workers readers cancellers
 administrators retention rate_limit claim_rate max_size_bytes replay_rules lease_ms node max strategy overrides
 priority_aging_s priority_aging_limit
 atomicity idempotency_key requeue missing_ok job_types dry_run $schema $ref""".split()
CHOICES = {"ordering": "strict relaxed", "mode": "strict warn off", "overlap": "skip allow enqueue cancel_previous",
    "version": "1 2 2.0 3.1.0-rc.1", "versions": "* 1 >=1.0,<3", "uri": "urn:a:b urn:ojs:schema:a.b:v1",
    "strategy": "reject discard move", "atomicity": "atomic partial", "point": "enqueue before_execute after_execute",
    "place": "first last before after", "directive": "continue quiet terminate", "delivery": "at_most_once",
    "overflow": "reject drop_oldest block", "on_limit": "wait reschedule drop", "backoff": "linear constant",
    "on_conflict": "reject ignore replace replace_except_schedule update update_except_schedule merge "
                   "merge_except_schedule"}
