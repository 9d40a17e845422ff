// client.mjs URL: a producer and a worker of the Open Job Spec in a few lines of JavaScript. Pushes ten jobs, works all
// of them, with a failure and its retry among them, and prints what they came to.
// client.mjs URL hang QUEUE: fetches one job, says which, and does no more: a worker that is about to be killed.
const [url, mode, queue] = process.argv.slice(2);

async function call(method, path, body, headers = {}) {
    const response = await fetch(url + path, {
        method,
        headers: { 'Content-Type': 'application/openjobspec+json', ...headers },
        body: body && JSON.stringify(body),
    });
    const reply = await response.json();
    if (!response.ok) throw new Error(`${response.status} ${JSON.stringify(reply)}`);
    return reply;
}

const fetchJobs = (queues, count, wait, lease = 30000) =>
    call('POST', '/ojs/v1/workers/fetch', { queues, worker_id: 'node', count, visibility_timeout_ms: lease },
        { Prefer: `wait=${wait}` });

if (mode === 'hang') {
    const { jobs } = await fetchJobs([queue], 1, 20, 1000);
    console.log(jobs[0].id);
    setInterval(() => {}, 1000);
} else {
    const retry = { max_attempts: 2, initial_interval_ms: 10, jitter: false };
    for (let n = 1; n <= 10; n++)
        await call('POST', '/ojs/v1/jobs', { type: 'square', args: [n], options: { queue: 'javascript', retry } });
    let done = 0;
    while (done < 10) {
        for (const job of (await fetchJobs(['javascript'], 3, 5)).jobs) {
            const [n] = job.args;
            const beat = await call('POST', '/ojs/v1/workers/heartbeat', { worker_id: 'node', active_jobs: [job.id] });
            if (beat.state !== 'running' || beat.jobs_extended[0] !== job.id) throw new Error(JSON.stringify(beat));
            if (n === 10 && job.attempt === 1) {
                const { state } = await call('POST', '/ojs/v1/workers/nack',
                    { job_id: job.id, worker_id: 'node', error: { code: 'handler_error', message: 'not yet' } });
                if (state !== 'retryable') throw new Error(`${job.id} is ${state}`);
                continue;
            }
            await call('POST', '/ojs/v1/workers/ack', { job_id: job.id, worker_id: 'node', lease_id: job.lease_id,
                result: { square: n ** 2 } });
            const { state, result } = (await call('GET', `/ojs/v1/jobs/${job.id}`)).job;
            if (state !== 'completed') throw new Error(`${job.id} is ${state}`);
            done++;
            console.log(result.square);
        }
    }
}
