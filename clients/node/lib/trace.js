// trace.js: OpenTelemetry, if @opentelemetry/api is installed. The context travels in the job's meta.
import { get, isA } from './json.js';
import { report } from './report.js';

const api = await import('@opentelemetry/api').catch(() => undefined);

/** meta with the caller's trace context, if there is one. */
export function withTrace(meta) {
  if (!api || (meta && (typeof meta !== 'object' || Array.isArray(meta)))) return meta; // the server refuses these
  const carrier = {};
  api.propagation.inject(api.context.active(), carrier);
  if (!carrier.traceparent) return meta;
  return { trace_id: carrier.traceparent.split('-')[1], ...carrier, ...meta };
}

/** Runs a handler in a span whose parent is the span that pushed the job. */
export function inSpan(job, handler) {
  if (!api) return handler();
  const carrier = job.meta.traceparent ? job.meta : job.meta.trace ?? {};
  const attributes = {
    'messaging.system': 'ojs', 'messaging.operation.type': 'process', 'messaging.destination.name': job.queue,
    'messaging.message.id': job.id, 'ojs.job.type': job.type, 'ojs.job.attempt': job.attempt,
  };
  const options = { kind: api.SpanKind.CONSUMER, attributes };
  const parent = api.propagation.extract(api.ROOT_CONTEXT, carrier);
  return api.trace.getTracer('ojs-postgres').startActiveSpan(`process ${job.type}`, options, parent, async (span) => {
    try {
      return await handler();
    } catch (error) {
      const { type, message } = report(error); // the error itself may be of any kind
      const stack = isA(error, Error) ? get(error, 'stack') : undefined;
      span.recordException({ name: type, message, ...(typeof stack === 'string' && { stack }) });
      span.setStatus({ code: api.SpanStatusCode.ERROR, message });
      throw error;
    } finally {
      span.end();
    }
  });
}
