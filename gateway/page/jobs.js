// jobs.js: jobs by filters, and dead letters, which are jobs too.
import { h, moment, number } from './dom.js';
import { call, get, may, path, query } from './api.js';
import { Selection, action, badge, filters, jobLink, pager, queueLink, say, sure, table } from './widgets.js';

const states = ['available', 'scheduled', 'retryable', 'pending', 'active', 'completed', 'cancelled', 'discarded'];

export const title = () => 'Jobs';

// What a tick is for: one call for all that are ticked.
async function bulk(verb, done, ids, refresh) {
    const answer = await call('POST', `admin/jobs/bulk/${verb}`, { job_ids: ids, confirm: true });
    const first = answer.errors?.[0];
    const failed =
        answer.failed > 0
            ? ` ${answer.failed} could not be: ${
                  first?.message ?? first?.error?.message ?? 'their state does not allow it'
              }.`
            : '';
    say(
        `${number(answer.succeeded)} of ${number(answer.matched ?? ids.length)} jobs are ${done}.${failed}`,
        answer.failed > 0 ? 'failed' : 'done',
    );
    refresh();
}

let refreshNow = () => {};
const chosen = new Selection(ids => [
    action('admin', 'Retry', () => bulk('retry', 'available again', ids, refreshNow)),
    action('admin', 'Cancel', () => bulk('cancel', 'cancelled', ids, refreshNow)),
    action(
        'admin',
        'Delete',
        async () =>
            (await sure(
                `Delete ${ids.length} jobs?`,
                'Jobs that have ended are removed with their history.',
                'Delete',
            )) && (await bulk('delete', 'deleted', ids, refreshNow)),
        { class: 'danger' },
    ),
]);

const newest = job =>
    moment(
        job.completed_at ?? job.discarded_at ?? job.cancelled_at ?? job.started_at ?? job.enqueued_at ?? job.created_at,
    );

export async function view({ values, signal, refresh }) {
    refreshNow = refresh;
    const { state, queue, type, cursor } = values;
    const { items, pagination } = await get('admin/jobs' + query({ limit: 50, state, queue, type, cursor }), signal);
    return [
        filters('jobs', { state, queue, type }, [
            { name: 'state', label: 'State', type: 'select', options: [['', 'any'], ...states] },
            { name: 'queue', label: 'Queue', placeholder: 'any' },
            { name: 'type', label: 'Type', placeholder: 'mail.*' },
        ]),
        h('p', { class: 'count' }, total(pagination.total, 'job')),
        may('admin') && chosen.bar,
        table(
            'Jobs',
            [
                ...(may('admin') ? [chosen.column(items.map(job => job.id))] : []),
                { head: 'Job', cell: job => jobLink(job.id) },
                { head: 'State', cell: job => badge(job.state) },
                { head: 'Type', class: 'long', cell: job => job.type },
                { head: 'Queue', class: 'wide', cell: job => queueLink(job.queue) },
                {
                    head: 'Attempt',
                    class: 'number wide',
                    cell: job => `${job.attempt} of ${job.max_attempts ?? job.retry?.max_attempts ?? '–'}`,
                },
                { head: 'Priority', class: 'number wide', cell: job => String(job.priority ?? 0) },
                { head: 'Pushed', class: 'wide', cell: job => moment(job.created_at) },
                { head: 'Last change', cell: newest },
            ],
            items,
            job => job.id,
            'No job is like that.',
        ),
        pager('jobs', values, pagination),
    ];
}

const total = (n, what) => (n > 10000 ? `more than 10,000 ${what}s` : `${number(n)} ${what}${n === 1 ? '' : 's'}`);

// DEAD LETTERS

const ticked = new Selection(ids => [
    action('admin', 'Retry', () => bulk('retry', 'available again', ids, refreshNow)),
    action(
        'admin',
        'Delete',
        async () =>
            (await sure(`Delete ${ids.length} dead letters?`, 'They are removed with their history.', 'Delete')) &&
            (await bulk('delete', 'deleted', ids, refreshNow)),
        { class: 'danger' },
    ),
]);

export const deadLetters = {
    title: () => 'Dead letters',
    async view({ values, signal, refresh }) {
        refreshNow = refresh;
        const { queue, type, error_type, cursor } = values;
        const filter = Object.fromEntries(Object.entries({ queue, type, error_type }).filter(([, value]) => value));
        const { jobs, pagination } = await get('dead-letter' + query({ limit: 50, ...filter, cursor }), signal);
        const all = Object.keys(filter).length === 0 ? 'all dead letters' : 'all dead letters that the filter shows';
        const everything = async (method, target, done, danger) => {
            if (
                !(await sure(
                    `${danger ? 'Delete' : 'Retry'} ${all}?`,
                    `There are ${number(pagination.total)}.`,
                    danger ? 'Delete all' : 'Retry all',
                    danger,
                ))
            )
                return;
            const answer = await call(method, target, { filter, confirm: true });
            const left = answer.left_out ?? 0;
            say(
                `${number(answer.succeeded ?? answer.purged_count)} are ${done}.` +
                    (left > 0 ? ` ${number(left)} of workflows that have ended are left out.` : ''),
            );
            refresh();
        };
        return [
            filters('dead-letters', { queue, type, error_type }, [
                { name: 'queue', label: 'Queue', placeholder: 'any' },
                { name: 'type', label: 'Type', placeholder: 'mail.*' },
                { name: 'error_type', label: 'Error type', placeholder: 'any' },
            ]),
            h(
                'p',
                { class: 'count' },
                total(pagination.total, 'dead letter'),
                jobs.length > 0 && [
                    action('admin', 'Retry all', () =>
                        everything('POST', 'admin/dead-letter/retry', 'available again', false),
                    ),
                    action('admin', 'Delete all', () => everything('DELETE', 'admin/dead-letter', 'deleted', true), {
                        class: 'danger',
                    }),
                ],
            ),
            may('admin') && ticked.bar,
            table(
                'Dead letters',
                [
                    ...(may('admin') ? [ticked.column(jobs.map(job => job.id))] : []),
                    { head: 'Job', cell: job => jobLink(job.id) },
                    { head: 'Type', class: 'long', cell: job => job.type },
                    { head: 'Queue', class: 'wide', cell: job => queueLink(job.queue) },
                    {
                        head: 'Error',
                        class: 'long',
                        cell: job => [
                            h('b', {}, job.error?.type ?? job.error?.code ?? ''),
                            ' ',
                            job.error?.message ?? '',
                        ],
                    },
                    { head: 'Attempts', class: 'number wide', cell: job => String(job.attempt) },
                    { head: 'Died', cell: job => moment(job.discarded_at ?? job.completed_at) },
                    {
                        head: '',
                        class: 'right',
                        cell: job => [
                            action(
                                'admin',
                                'Retry',
                                async () => {
                                    await call('POST', path`admin/dead-letter/${job.id}/retry`);
                                    say('The job is available again.');
                                    refresh();
                                },
                                { label: `Retry ${job.id}`, key: 'retry ' + job.id },
                            ),
                            action(
                                'admin',
                                'Delete',
                                async () => {
                                    if (!(await sure('Delete this dead letter?', job.id, 'Delete'))) return;
                                    await call('DELETE', path`admin/dead-letter/${job.id}`);
                                    say('The dead letter is deleted.');
                                    refresh();
                                },
                                { label: `Delete ${job.id}`, class: 'danger', key: 'delete ' + job.id },
                            ),
                        ],
                    },
                ],
                jobs,
                job => job.id,
                'No dead letters.',
            ),
            pager('dead-letters', values, pagination),
        ];
    },
};
