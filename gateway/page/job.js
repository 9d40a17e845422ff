// job.js: one job: what became of it and why, and what may be done to it.
import { exact, h, json, milliseconds, moment } from './dom.js';
import { call, get, path } from './api.js';
import { action, actions, ask, badge, bar, code, facts, link, panel, queueLink, say, sure } from './widgets.js';

export const title = ({ id }) => `Job ${id.slice(0, 8)}`;

const over = ['completed', 'cancelled', 'discarded'];

export async function view({ id, signal, refresh }) {
    const [job, { explanation }, { events }] = await Promise.all([
        get(path`admin/jobs/${id}`, signal),
        get(path`admin/jobs/${id}/explain`, signal),
        get(path`admin/jobs/${id}/history`, signal),
    ]);
    const ended = over.includes(job.state);
    const done = async (method, target, text, body) => {
        await call(method, target, body);
        say(text);
        refresh();
    };
    return [
        h(
            'p',
            { class: 'headline' },
            badge(job.state),
            ' ',
            h('b', { class: 'long' }, job.type),
            ' in ',
            queueLink(job.queue),
        ),
        h('p', { class: 'explanation' }, explanation),
        typeof job.progress === 'number' && h('p', {}, bar(job.progress), ' ', job.progress_message),
        actions(
            !ended &&
                action('admin', 'Cancel', () => done('POST', path`admin/jobs/${id}/cancel`, 'The job is cancelled.')),
            ['discarded', 'cancelled', 'retryable'].includes(job.state) &&
                action(
                    'admin',
                    'Retry',
                    () => done('POST', path`admin/jobs/${id}/retry`, 'The job is available again.'),
                    { class: 'primary' },
                ),
            ['available', 'scheduled'].includes(job.state) && action('admin', 'Priority', () => priority(job, done)),
            !ended &&
                job.state !== 'active' &&
                action(
                    'admin',
                    'Discard',
                    async () =>
                        (await sure('Discard this job?', 'It ends without being run.', 'Discard')) &&
                        (await done('POST', path`admin/jobs/${id}/discard`, 'The job is discarded.')),
                    { class: 'danger' },
                ),
            ended && action('admin', 'Delete', () => remove(id), { class: 'danger' }),
        ),
        facts(
            ['Id', h('span', { class: 'id' }, job.id)],
            ['Attempt', `${job.attempt} of ${job.max_attempts ?? job.retry?.max_attempts ?? '–'}`],
            ['Deliveries', job.deliveries > job.attempt ? job.deliveries : null],
            ['Priority', job.priority],
            ['Worker', job.worker && link('/workers', job.worker)],
            ['Scheduled for', moment(job.scheduled_at)],
            ['Next attempt', moment(job.next_attempt_at)],
            ['Expires', moment(job.expires_at)],
            ['Lease ends', moment(job.lease_expires_at)],
            [
                'Waited',
                job.started_at &&
                    milliseconds(Date.parse(job.started_at) - Date.parse(job.enqueued_at ?? job.created_at)),
            ],
            [
                'Ran',
                job.started_at &&
                    job.completed_at &&
                    milliseconds(Date.parse(job.completed_at) - Date.parse(job.started_at)),
            ],
            ['Workflow', job.workflow_id && link(`/workflows/${job.workflow_id}`, job.workflow_id.slice(0, 8))],
            ['Tags', job.tags?.join(', ')],
        ),
        panel('Timeline', timeline(job, events)),
        job.errors?.length > 0 && panel('Errors', errors(job.errors)),
        panel('Arguments', code(json(job.args))),
        job.result !== null && job.result !== undefined && panel('Result', code(json(job.result))),
        job.checkpoint !== undefined && panel('Checkpoint', code(json(job.checkpoint))),
        job.meta && Object.keys(job.meta).length > 0 && panel('Metadata', code(json(job.meta))),
        h('details', { class: 'panel', key: 'all' }, h('summary', {}, 'All attributes'), code(json(job))),
    ];
}

// Events say what happened as long as they are kept; else the job's own times do.
function timeline(job, events) {
    const words = {
        'job.enqueued': 'pushed',
        'job.scheduled': 'scheduled',
        'job.started': 'started',
        'job.completed': 'completed',
        'job.failed': 'failed',
        'job.retrying': 'will be tried again',
        'job.discarded': 'discarded',
        'job.cancelled': 'cancelled',
        'job.expired': 'expired',
    };
    const steps =
        events.length > 0
            ? events.map(event => ({
                  at: event.time,
                  type: event.type.replace('job.', ''),
                  text: words[event.type] ?? event.type.replace('job.', '').replaceAll(/[._]/g, ' '),
                  more: more(event.data),
              }))
            : ['created', 'enqueued', 'started', 'completed', 'cancelled', 'discarded']
                  .filter(name => job[name + '_at'])
                  .map(name => ({ at: job[name + '_at'], type: name, text: name, more: '' }));
    return h(
        'ol',
        { class: 'timeline' },
        steps.map((step, i) =>
            h(
                'li',
                { class: step.type },
                exact(step.at),
                h('b', {}, step.text),
                h('span', {}, step.more),
                gap(i, steps),
            ),
        ),
    );
}

function gap(i, steps) {
    const ms = i > 0 ? Date.parse(steps[i].at) - Date.parse(steps[i - 1].at) : 0;
    return ms >= 1 && h('span', { class: 'gap' }, '+' + milliseconds(ms));
}

function more(data) {
    const parts = [
        data.attempt && `attempt ${data.attempt}`,
        data.worker_id && `by ${data.worker_id}`,
        data.error?.message,
        data.reason,
    ];
    return parts.filter(Boolean).join(', ');
}

function errors(list) {
    return h(
        'ol',
        { class: 'errors' },
        list.map((error, i) =>
            h(
                'li',
                { key: i },
                h(
                    'p',
                    {},
                    h('b', {}, error.type ?? error.code ?? 'error'),
                    ' ',
                    error.message,
                    ' ',
                    h(
                        'small',
                        {},
                        error.attempt && `attempt ${error.attempt} `,
                        moment(error.at ?? error.occurred_at ?? error.failed_at),
                    ),
                ),
                (error.backtrace ?? error.details) &&
                    h(
                        'details',
                        {},
                        h('summary', {}, 'Details'),
                        code(
                            typeof error.backtrace === 'string'
                                ? error.backtrace
                                : json(error.backtrace ?? error.details),
                        ),
                    ),
            ),
        ),
    );
}

async function priority(job, done) {
    const chosen = await ask({
        title: 'Priority',
        text: 'Higher ones are claimed first.',
        fields: [
            {
                name: 'priority',
                label: 'Priority, -100 to 100',
                type: 'number',
                value: job.priority ?? 0,
                min: -100,
                max: 100,
                step: 1,
                required: true,
            },
        ],
    });
    if (chosen) await done('PATCH', path`admin/jobs/${job.id}`, 'The priority is changed.', chosen);
}

async function remove(id) {
    if (!(await sure('Delete this job?', 'It is removed with its history.', 'Delete'))) return;
    await call('DELETE', path`admin/jobs/${id}`);
    say('The job is deleted.');
    location.hash = '/jobs';
}
