export { JobAborted, JobError, OjsError } from './lib/errors.js';
export { cancel, info, push, pushMany, waitResult } from './lib/jobs.js';
export { Worker } from './lib/worker.js';
