/** Anything with the query() of pg: a Pool, a Client, or a client within a transaction of yours. It may answer the rows
 * alone, as that of TypeORM does. */
export interface Queryable {
  query(text: string, values?: unknown[]): Promise<{ rows: any[] } | any[]>;
}
/** Seconds, an ISO 8601 duration such as 'PT5M', or an interval of PostgreSQL such as '5 minutes'. */
export type Time = number | string;
export interface PoolLike extends Queryable {
  connect(): Promise<any>;
}
export type Json = unknown;
export type State =
  | 'pending' | 'scheduled' | 'available' | 'active' | 'retryable' | 'completed' | 'cancelled' | 'discarded';

export interface RetryPolicy {
  /** Attempts in all, the first one included. */
  max_attempts?: number;
  initial_interval?: Time;
  backoff_coefficient?: number;
  backoff_strategy?: string;
  max_interval?: Time;
  jitter?: boolean;
  /** Types of errors that end the job at once. */
  non_retryable_errors?: string[];
  on_exhaustion?: string;
}
export interface UniquePolicy {
  keys?: string[];
  args_keys?: string[];
  meta_keys?: string[];
  period?: Time;
  states?: State[];
  on_conflict?: string;
}
export interface RateLimit {
  key?: string;
  concurrency?: number;
  rate?: { limit: number; period: Time };
  throttle?: { limit: number; period: Time };
  on_limit?: string;
}

/** The attributes of a job, with their names in the specification; see docs/how-to/producing.md of ojs. */
export interface JobOptions {
  queue?: string;
  priority?: number;
  delay?: Time;
  scheduled_at?: Date | string;
  expires_at?: Date | string;
  /** Longest run of an attempt. */
  timeout?: Time;
  max_attempts?: number;
  retry?: RetryPolicy;
  unique?: UniquePolicy;
  rate_limit?: RateLimit;
  /** The job that led to this one. */
  parent_id?: string;
  meta?: Record<string, unknown>;
  tags?: string[];
  deduplication_key?: string;
  deduplication_ttl?: Time;
  /** Jobs of a queue with the same key run one after the other. */
  ordering_key?: string;
  ordering?: 'strict' | 'relaxed';
  /** A UUIDv7 of your own. */
  id?: string;
  pending?: boolean;
  /** Any other attribute. */
  options?: Record<string, unknown>;
}
export interface NewJob extends JobOptions {
  type: string;
  args?: Json[];
}
export interface Envelope extends Record<string, any> {
  id: string;
  type: string;
  queue: string;
  state: State;
  args: any[];
  meta: Record<string, any>;
  attempt: number;
  max_attempts: number;
  created_at: string;
  deduplicated?: boolean;
}

export function push(db: Queryable, type: string, args?: Json[], options?: JobOptions): Promise<Envelope>;
export interface BatchOptions {
  atomicity?: 'atomic' | 'partial';
  idempotency_key?: string;
  /** Of the whole batch, which then goes to one queue. */
  deduplication_key?: string;
  deduplication_ttl?: Time;
}
export function pushMany(db: Queryable, jobs: NewJob[], options?: BatchOptions):
  Promise<{ index: number; id: string | null; status: string; error: any }[]>;
/** Ends an open job; the state it has now is the answer. */
export function cancel(db: Queryable, id: string): Promise<State>;
export function info(db: Queryable, id: string): Promise<Envelope>;
/** Waits until a job has ended, at most 30 seconds; undefined if it has not by then. */
export function waitResult(
  db: Queryable, id: string, timeout?: Time): Promise<{ state: State; result: any; error: any } | undefined>;

export interface Job<Args extends any[] = any[]> {
  readonly id: string;
  readonly type: string;
  readonly queue: string;
  readonly args: Args;
  readonly meta: Record<string, any>;
  readonly priority: number;
  readonly attempt: number;
  readonly max_attempts: number;
  readonly deliveries: number;
  readonly tags: string[] | null;
  readonly created_at: Date;
  readonly scheduled_at: Date | null;
  readonly errors: any[] | null;
  /** Every other attribute of the job. */
  readonly extra: Record<string, any>;
  /** What an earlier attempt saved, or this one. */
  readonly checkpoint: any;
  /** When this attempt is over its timeout. */
  readonly deadline: Date;
  /** Aborted when the job is cancelled, lost or over its timeout, or the worker stops; the reason is a JobAborted. */
  readonly signal: AbortSignal;
  /** Does the effect and completes the job with what it returns, in one transaction. */
  transaction<T>(effect: (client: any) => Promise<T>): Promise<T>;
  /** Completes the job in a transaction of your own. */
  complete(db: Queryable, result?: Json): Promise<void>;
  /** Gives the job back; the attempt does not count. */
  release(delay?: Time): Promise<void>;
  /** How far the job is, from 0 to 1. */
  progress(progress: number | null, message?: string | null, data?: Json): Promise<void>;
  /** What the next attempt is to go on from; `db` may be within a transaction. */
  saveCheckpoint(state: Json, db?: Queryable): Promise<void>;
}

export interface Log {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}
export interface WorkerOptions {
  handlers: Record<string, (job: Job<any>) => unknown>;
  queues?: string[];
  concurrency?: number;
  /** A connection string or a configuration of pg, of a connection that no pooler shares. Default: PGHOST and so on. */
  connection?: string | Record<string, unknown>;
  /** For everything but claims and heartbeats; may go through PgBouncer. Default: a pool of the worker's own. */
  pool?: PoolLike;
  /** How long the jobs are the worker's without a heartbeat. */
  lease?: Time;
  /** How long stop() waits for handlers. Default: 25 seconds. */
  grace?: Time;
  /** Looks for jobs this often without being told of any. Default: 5 seconds. */
  poll?: Time;
  /** Default: 5 seconds, and more often where a lease is short. */
  heartbeat?: Time;
  name?: string;
  labels?: string[];
  /** Signals that stop the worker; [] for none. */
  signals?: string[];
  /** As pino has it; false for none. Default: JSON lines on standard error. */
  log?: Log | false;
}
export class Worker {
  constructor(options: WorkerOptions);
  readonly name: string;
  run(options?: { drain?: boolean }): Promise<void>;
  stop(grace?: Time): Promise<void>;
}

export class OjsError extends Error {
  readonly code: string;
  readonly sqlstate: string;
  readonly retryable: boolean;
  readonly details: Record<string, any>;
  readonly hint?: string;
}
export class JobError extends Error {
  constructor(
    message: string,
    options?: { type?: string; retryable?: boolean; details?: Json; delay?: Time; cause?: unknown });
}
export class JobAborted extends Error {
  readonly reason: 'cancelled' | 'lost' | 'timeout' | 'shutdown';
}
