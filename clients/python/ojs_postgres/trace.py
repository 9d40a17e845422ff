"""OpenTelemetry, if it is installed. The context travels in the job's meta."""
from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

try:
    from opentelemetry import propagate, trace
except ImportError:
    trace = None

if TYPE_CHECKING:
    from .job import Job


def with_trace(meta: dict[str, Any]) -> dict[str, Any]:
    """meta with the caller's trace context, if there is one."""
    carrier: dict[str, Any] = {}
    if trace:
        propagate.inject(carrier)
    if "traceparent" in carrier:
        carrier["trace_id"] = carrier["traceparent"].split("-")[1]
    return {**carrier, **meta}


def span(job: Job) -> AbstractContextManager[Any]:
    """A span for a handler, whose parent is the span that pushed the job."""
    if not trace:
        return nullcontext()
    carrier = job.meta if "traceparent" in job.meta else job.meta.get("trace") or {}
    return trace.get_tracer("ojs-postgres").start_as_current_span(
        f"process {job.type}", context=propagate.extract(carrier), kind=trace.SpanKind.CONSUMER, attributes={
            "messaging.system": "ojs", "messaging.operation.type": "process", "messaging.destination.name": job.queue,
            "messaging.message.id": str(job.id), "ojs.job.type": job.type, "ojs.job.attempt": job.attempt})
