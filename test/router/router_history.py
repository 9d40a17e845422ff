"""router_history.py: what the sessions of test/router/torture were answered, and whether that can be. All times are of
one machine's clock. Each check lets doubt speak for the router: a job is held for certain from when its claim was
answered until somebody may have ended it, its lease may have lapsed, or, where leases are not durable, its node may
have crashed."""
import collections
import glob
import json
import os

# A node does not answer, a session was ended or a call cancelled; our call is late: the job waits again, is another's
# or is over.
EXPECTED = {'57P03', '57P01', '57014', 'lost', 'OJ105', 'OJ301', 'OJ302', 'OJ311'}
FINISHED = {'completed', 'discarded', 'cancelled'}


class Job:
    def __init__(self):
        self.keys, self.known_by, self.pushed_from = None, None, None
        self.claims = []            # (t0, t1, lease)
        self.crash_ends_leases = False
        self.may_end = []           # t0 of what may have completed it
        self.lets_go = []           # t0 of what may have ended a claim
        self.acked = []             # (t0, t1) of answers that it is completed


def overlaps(spans):
    """Pairs of neighbours, in order of their beginning, that are there at one time."""
    latest = None
    for span in sorted(spans):
        if span[0] < span[1]:
            if latest and span[0] < latest[1]:
                yield latest, span
            if not latest or span[1] > latest[1]:
                latest = span


class History:
    def __init__(self, folder, final):
        self.final, self.jobs = final, collections.defaultdict(Job)
        self.unexpected, self.pushed, self.errors = [], {}, collections.Counter()
        self.faults = collections.defaultdict(list)
        for path in glob.glob(os.path.join(folder, 'client*.jsonl')):
            with open(path) as f:
                for line in f:
                    self.read(*json.loads(line))

    def read(self, kind, t0, t1, keys, error, answer, more):
        if error:
            self.errors[error] += 1
            if 'said' in more:
                self.unexpected.append(f'{kind}: {error} {more["said"].splitlines()[0]}')
        if kind == 'fault':
            self.faults[keys].append((t0, t1))
        elif kind == 'push':
            # One with an id of its own was pushed again, and is there.
            for (id,) in answer or ([more['id']],) if answer or error == 'OJ301' else ():
                job = self.jobs[id]
                job.keys = keys
                if job.known_by is None or t1 < job.known_by:
                    job.known_by = t1
                if job.pushed_from is None or t0 < job.pushed_from:
                    job.pushed_from = t0
                self.pushed[id] = t1
        elif kind == 'claim':
            for id, lease, queue, args, type in answer or ():
                job = self.jobs[id]
                job.claims.append((t0, t1, more['lease']))
                job.crash_ends_leases = queue == 'plain'
                job.known_by = min(job.known_by or t1, t1)
                if job.keys is None and queue in ('unique', 'ordered'):     # its push was not answered
                    job.keys = ['order' if queue == 'ordered' else 'unique', args[0]]
        else:
            for id in more['ids']:
                if kind != 'extend':
                    self.jobs[id].lets_go.append(t0)
                if kind in ('ack', 'ack_many'):
                    self.jobs[id].may_end.append(t0)
            if kind == 'ack' and answer:
                self.jobs[more['ids'][0]].acked.append((t0, t1))
            if kind == 'ack_many' and answer:
                for id in set(more['ids']) - set(answer[0][1]):
                    self.jobs[id].acked.append((t0, t1))

    def holds(self, id, job):
        """When it was held for certain: (from, until)."""
        crashes, node = [], int(id.split('-')[3], 16) & 16383
        if job.crash_ends_leases:   # an id of the client's own does not say where it is
            crashes = [span for n, spans in self.faults.items() for span in spans if n == node or node > 4]
        for t0, t1, lease in job.claims:
            # The node goes at some moment of the fault.
            yield t1, min([t0 + lease] + [t for t in job.lets_go if t >= t0]
                + [max(start, t0) for start, end in crashes if end >= t0])

    def check(self):
        found = collections.defaultdict(list)
        by_key = collections.defaultdict(list)
        for id, job in self.jobs.items():
            for a, b in overlaps(self.holds(id, job)):
                found['exclusive'].append(f'{id} held twice: {a} and {b}')
            if len(job.acked) > 1:
                found['once'].append(f'{id} completed {len(job.acked)} times: {job.acked}')
            if job.acked:
                late = [c for c in job.claims if c[0] > job.acked[0][1]]
                if late:
                    found['over'].append(f'{id} was claimed {late} after it was completed {job.acked}')
            if job.keys and job.keys[0] in ('unique', 'order'):
                by_key[tuple(job.keys)].append((id, job))
        for key, jobs in by_key.items():
            if key[0] == 'unique':
                spans = [(j.known_by, min(j.may_end, default=float('inf')), id) for id, j in jobs]
                for a, b in overlaps(spans):
                    found['unique'].append(f'{key}: {a} and {b}')
            else:
                for a, b in overlaps([(*h, id) for id, j in jobs for h in self.holds(id, j)]):
                    found['one of a key'].append(f'{key}: {a} and {b}')
                self.check_order(key, [j for j in jobs if j[1].pushed_from], found)
        where = collections.Counter(id for jobs in self.final.values() for id in jobs)
        found['one node'] = [id for id, times in where.items() if times > 1]
        found['lost'] = [f'{id}, pushed at {t}, is on no node' for id, t in self.pushed.items() if id not in where]
        found['open'] = [f'{id} on node {node} is {state}' for node, jobs in self.final.items()
            for id, state in jobs.items() if state not in FINISHED]
        found['undone'] = [f'{id} is {state}, and was acked' for jobs in self.final.values()
            for id, state in jobs.items() if state != 'completed' and id in self.jobs and self.jobs[id].acked]
        return {
            'only expected errors': self.unexpected,
            'no job is held by two workers at a time': found['exclusive'],
            'no job is completed twice': found['once'],
            'no job is handed out after it was completed': found['over'],
            'no two jobs of a unique key are open at a time, over all nodes': found['unique'],
            'no two jobs of an ordering key are held at a time, over all nodes': found['one of a key'],
            'jobs of an ordering key are handed out in the order of their pushes': found['order'],
            'no job is on two nodes': found['one node'],
            'no job that was pushed is lost': found['lost'],
            'what was completed stays so': found['undone'],
            'every job ends': found['open'],
        }

    def check_order(self, key, jobs, found):
        """None is claimed while one that had been pushed before its push began is there for certain."""
        jobs.sort(key=lambda j: j[1].pushed_from)
        for i, (id, job) in enumerate(jobs):
            first = min((c[1] for c in job.claims), default=None)
            for other_id, other in jobs[max(0, i - 60):i] if first else ():
                if other.known_by < job.pushed_from and first < min(other.may_end, default=float('inf')):
                    found['order'].append(f'{key}: {id} was claimed by {first}, before the end of {other_id}')

    def summary(self):
        return (f'{len(self.pushed)} jobs pushed, {sum(len(j.claims) for j in self.jobs.values())} claims of jobs,'
                f' {sum(len(j.acked) for j in self.jobs.values())} completions, errors {dict(self.errors)},'
                f' jobs by node { {node: len(jobs) for node, jobs in self.final.items()} }')
