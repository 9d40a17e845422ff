import type {
  MessageQueue, MessageQueueDepth, MessageQueueEnqueueOptions, MessageQueueListenOptions,
} from '@fedify/fedify';
import type { JobOptions, PoolLike, WorkerOptions } from 'ojs-postgres';

/** What a listener is made of: see the Worker of ojs-postgres. */
type ListenerOptions = Pick<
  WorkerOptions, 'concurrency' | 'lease' | 'grace' | 'poll' | 'heartbeat' | 'name' | 'labels' | 'log'>;

export interface OjsMessageQueueOptions extends ListenerOptions {
  /** A connection string or the configuration of pg, not of a pooler. Default: PGHOST and so on. */
  connection?: string | Record<string, unknown>;
  /** For everything but listening; may go through PgBouncer. Default: pools of the queue's own. */
  pool?: PoolLike;
  /** Default: fedify. */
  queue?: string;
  /** The retry policy. Default: 10 attempts, at growing intervals from 1 second. */
  retry?: Record<string, unknown>;
  /** What becomes of an ordering key whose first message is to be tried again. Default: strict, it waits. */
  ordering?: 'strict' | 'relaxed';
  /** Any other attributes of the jobs. */
  attributes?: JobOptions;
}

export interface OjsEnqueueOptions extends MessageQueueEnqueueOptions {
  /** A message whose key was enqueued within the last hour is left out; of a batch, the batch. */
  readonly deduplicationKey?: string;
}

export class OjsMessageQueue implements MessageQueue {
  constructor(options?: OjsMessageQueueOptions);
  readonly nativeRetrial: true;
  readonly nativeDeduplication: true;
  enqueue(message: any, options?: OjsEnqueueOptions): Promise<void>;
  enqueueMany(messages: readonly any[], options?: OjsEnqueueOptions): Promise<void>;
  listen(handler: (message: any) => Promise<void> | void, options?: MessageQueueListenOptions): Promise<void>;
  /** Needs the role ojs_observer. */
  getDepth(): Promise<MessageQueueDepth>;
  /** Closes the pool, if it is the queue's own. */
  close(): Promise<void>;
}
