"""limits.py: the list of promises, and what the checks of promises.py and wholes.py take for granted."""

GRACE = 1.0         # a late commit may be passed by for so long
WAKE = 2.5          # a waiting claim learns of a job within so long, however busy the machine
PROMPT = 0.1        # and mostly within so long, where the extension is preloaded and little else goes on
HOPS = 4            # processes that a wake-up goes through, one after another
SLOW = 9.0          # a call that need not wait for anyone takes no longer
LOSSY = 3.0         # what was committed so long before a crash is on disk, even if nobody waited for that
PLACES = {"few": 3, "kept": 6}  # in these queues
PACE = 5, 1.0       # in the queue "paced" so many jobs may start within so long
EPSILON = 0.002

# What a call may be refused with, beside what the faults cause.
FAULTS = {"57P01", "57P02", "57P03", "57014", "40001", "40P01", "25P02", "08006", "08003"}
NOT_HELD = {"OJ105", "OJ302", "OJ303", "OJ311"}
REFUSALS = {
    "push": {"OJ301"}, "ack": NOT_HELD, "fail": NOT_HELD, "nack": NOT_HELD, "extend": NOT_HELD,
    "ack_and_claim": NOT_HELD, "cancel": {"OJ105", "OJ302", "OJ303", "OJ300"}, "activate": {"OJ105", "OJ302", "OJ303",
                                                                                           "OJ300"},
    "discard": {"OJ105", "OJ302", "OJ303", "OJ300"}, "retry": {"OJ105", "OJ302", "OJ303", "OJ300"},
    "workflow": {"OJ400"}, "cancel_workflow": {"OJ400", "OJ406"}, "extend_workflow": {"OJ400", "OJ406"},
}
ENDS = {"ack", "fail", "nack", "ack_many", "nack_many", "ack_and_claim"}
CANCELS = {"cancel", "cancel_many"}
CLAIMS = {"claim", "ack_and_claim", "work_next"}

# Every name under which something may be found.
PROMISES = (
    "no call fails but as documented",
    "no claim and no push waits for another's transaction",
    "a claim hands out active jobs of the queues that were asked for",
    "the jobs of one claim are in order of queue, priority and seq",
    "a claim hands out no more than it was asked for",
    "a transaction commits as a whole",
    "a push makes one job",
    "every job was pushed by someone",
    "a rolled back push leaves nothing",
    "a push answers the id of its job",
    "no committed push is lost",
    "a job is finished once",
    "a claim hands out what was pushed",
    "no two holders at once",
    "a job is delivered within its budget",
    "an at-most-once job is delivered once",
    "each delivery is counted",
    "a crash forgets no more than the leases of its moment",
    "each delivery is counted once",
    "each attempt is counted once",
    "each attempt is counted",
    "a pending job waits for its activation",
    "no job runs before its time",
    "no retry before its time",
    "no stale holder can act on a job",
    "a crash voids the leases of its moment",
    "who holds a lease can use it",
    "no job is completed twice",
    "an acknowledged job is completed",
    "a completed job was acknowledged",
    "a cancelled job stays so",
    "a cancelled job was cancelled by someone",
    "a job is discarded for a reason",
    "a discarded job stays so",
    "a finished job is never handed out",
    "effects happen once",
    "effects exist only where the job is completed",
    "effects exist where the job is completed",
    "priority, then first in first out, for one claimer",
    "a claim that comes back short leaves nothing behind",
    "who waits in a claim learns of a commit soon",
    "who extends in time keeps its job",
    "who extends a lease waits for nobody",
    "no setting is lost to another's",
    "a call by filter passes over no open job",
    "no two open jobs of one uniqueness key",
    "no two jobs of one deduplication key within its time",
    "nothing is handed out of a paused queue",
    "every job is in exactly one place",
    "nothing is stuck",
    "nothing is left of finished jobs",
    "statistics agree with the rows",
    "the server itself is sound",
    "a lease id is never given twice",
    "a durable lease survives a crash",
    "no more jobs are held than the queue's concurrency",
    "no more jobs start within a window than the queue's rate",
    "one job of an ordering key is handed out at a time",
    "jobs of an ordering key are handed out in order of push",
    "a workflow is stored whole or not at all",
    "each member of a workflow begins once, when its turn comes",
    "each callback of a workflow is pushed exactly once",
    "no member of a workflow begins before those before it have ended",
    "a member of a workflow ends once, as its job did",
    "a workflow ends as its members did",
    "no workflow is left open",
    "results are handed on",
    "an enqueue hook sees each push",
    "an execution hook runs with the end of the job",
)


def id_may_be(op, queue):
    asked = op.args.get("q")
    return queue in asked if isinstance(asked, list) else queue == asked
