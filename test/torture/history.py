"""history.py: what was asked and answered in a round, read back from the logs."""

import glob
import json
import os


class Tx:
    __slots__ = ("client", "number", "isolation", "status", "t0", "t1", "ops", "era")

    def __init__(self, client_name, number, isolation, era):
        self.client, self.number, self.isolation, self.era = client_name, number, isolation, era
        self.status = "rb"      # no word of a commit: it cannot have committed
        self.t0 = self.t1 = None
        self.ops = []


class Op:
    __slots__ = ("client", "number", "tx", "t0", "t1", "kind", "args", "status", "result", "void", "era", "lossy",
                 "told")

    def __init__(self, client_name, number, tx, t0, kind, args, era):
        self.client, self.number, self.tx, self.t0, self.kind, self.args = client_name, number, tx, t0, kind, args
        self.t1, self.status, self.result, self.void, self.era = None, None, None, False, era
        self.told = {}          # lease -> what the job was told of its workflow
        self.lossy = False      # its commit was not waited for, and a crash came soon

    @property
    def answered(self):
        """It happened, whether or not a crash has taken it back since."""
        return self.status == "ok" and not self.void and (self.tx is None or self.tx.status == "ok")

    @property
    def certain(self):
        """It happened, for good."""
        return self.answered and not self.lossy

    @property
    def possible(self):
        """It may have happened."""
        if self.void:
            return False
        if self.tx is None:
            return self.status in ("ok", "dead", None)
        return self.status == "ok" and self.tx.status in ("ok", "unknown")

    @property
    def before(self):
        """Others could see its effects no earlier than this."""
        return self.t0 if self.tx is None or self.tx.t0 is None else self.tx.t0

    @property
    def after(self):
        """Its effects are there from now on (certain only)."""
        return self.t1 if self.tx is None else self.tx.t1


class Claim:
    """A job handed out."""

    __slots__ = ("op", "id", "lease", "attempt", "deliveries", "started", "deadline", "priority", "seq", "queue",
                 "state", "retry")

    def __init__(self, op, row):
        self.op = op
        (self.id, self.lease, self.attempt, self.deliveries, self.started, self.deadline, self.priority, self.seq,
         self.queue, self.state, self.retry) = row


class History:
    def __init__(self):
        self.ops, self.txs, self.audits = [], [], []
        self.clock = [(0.0, 0.0, 0.0)]      # (set from, in force everywhere by, seconds)
        self.crashes = []                   # (begin, end, era after it, kind)
        self.faults = []                    # (begin, end, kind)
        self.notes = []
        self.lags = []                      # (begin, end, seconds): when the machine let a process wait, and how long
        self.final = None
        self.preload = True
        self.crowd_at = 0.0                 # until then only the waiter and the waker were there

    def add_log(self, name, lines):
        ops, txs, era = {}, {}, 0
        for line in lines:
            word = line[0]
            if word == "op":
                _, t0, number, tx, kind, args = line
                op = ops[number] = Op(name, number, txs[tx] if tx else None, t0, kind, args, era)
                if tx:
                    txs[tx].ops.append(op)
                self.ops.append(op)
            elif word == "ok":
                op = ops[line[2]]
                op.t1, op.status, op.result = line[1], "ok", line[3]
            elif word == "told":
                ops[line[1]].told = line[2]
            elif word == "err":
                op = ops[line[2]]
                op.t1, op.status, op.result = line[1], "err", line[3:]
            elif word == "dead":
                op = ops[line[2]]
                op.t1, op.status = line[1], "dead"
            elif word == "conn":
                era = line[2]
            elif word == "begin":
                tx = txs[line[2]] = Tx(name, line[2], line[3], era)
                self.txs.append(tx)
            elif word == "void":
                for op in txs[line[1]].ops:
                    if op.number >= line[2]:
                        op.void = True
            elif word == "commit":
                tx = txs[line[2]]
                tx.t0, tx.status = line[1], "unknown"
            elif word == "end":
                tx = txs[line[2]]
                tx.t1 = line[1]
                tx.status = {"ok": "ok", "rb": "rb", "dead": tx.status}[line[3]]
            elif word == "audit":
                self.audits.append(line[1:])
            elif word == "clock":
                self.clock.append(tuple(line[1:4]))
            elif word == "crash":
                self.crashes.append(tuple(line[1:5]))
                self.faults.append((line[1], line[2], line[4]))
            elif word == "fault":
                self.faults.append(tuple(line[1:4]))
            elif word == "crowd":
                self.crowd_at = line[1]
            elif word == "lag":
                self.lags.append(tuple(line[1:4]))
            elif word == "note":
                self.notes.append((name, *line[1:]))
            elif word == "round":
                self.preload = line[1]["preload"]

    def load(self, directory):
        for path in sorted(glob.glob(os.path.join(directory, "*.jsonl"))):
            lines = []
            with open(path) as f:
                for text in f:
                    try:
                        lines.append(json.loads(text))
                    except ValueError:
                        pass    # its writer was killed in the middle of the line
            self.add_log(os.path.basename(path)[:-6], lines)
        with open(os.path.join(directory, "final.json")) as f:
            self.final = json.load(f)
