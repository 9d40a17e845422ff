// client.mjs URL: a producer and a worker of the Open Job Spec in a few lines of JavaScript. Pushes ten jobs, works all of
// them, and prints what they came to.
const url = process.argv[2];

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

for (let n = 1; n <= 10; n++)
    await call('POST', '/ojs/v1/jobs', { type: 'square', args: [n], options: { queue: 'javascript' } });

let done = 0;
while (done < 10) {
    const { jobs } = await call('POST', '/ojs/v1/workers/fetch', { queues: ['javascript'], worker_id: 'node', count: 3 }, { Prefer: 'wait=5' });
    for (const job of jobs) {
        await call('POST', '/ojs/v1/workers/ack', { job_id: job.id, worker_id: 'node', result: { square: job.args[0] ** 2 } });
        const { state, result } = (await call('GET', `/ojs/v1/jobs/${job.id}`)).job;
        if (state !== 'completed') throw new Error(`${job.id} is ${state}`);
        done++;
        console.log(result.square);
    }
}
