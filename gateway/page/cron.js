// cron.js: jobs by the clock.
import { json, moment, number } from './dom.js';
import { call, get, path, query } from './api.js';
import { action, actions, ask, badge, jobLink, pager, say, sure, table } from './widgets.js';

export const title = () => 'Cron';

export async function view({ values, signal, refresh }) {
    const { crons, pagination } = await get('cron' + query({ limit: 50, cursor: values.cursor }), signal);
    const done = async (method, target, text, body) => {
        const answer = await call(method, target, body);
        say(text);
        refresh();
        return answer;
    };
    return [
        actions(
            action('admin', 'New entry', async () => {
                if (await edit(null)) {
                    say('The entry is there.');
                    refresh();
                }
            }),
        ),
        table(
            'Cron entries',
            [
                { head: 'Name', class: 'long', cell: c => c.name },
                {
                    head: 'State',
                    cell: c => badge(c.enabled ? 'active' : 'paused', c.enabled ? 'enabled' : 'disabled'),
                },
                { head: 'Expression', class: 'id', cell: c => c.expression },
                { head: 'Zone', class: 'wide', cell: c => c.timezone },
                { head: 'Job type', class: 'long', cell: c => c.type },
                { head: 'Queue', class: 'wide', cell: c => c.options?.queue ?? 'default' },
                { head: 'Next run', cell: c => (c.enabled ? moment(c.next_run_at) : '') },
                { head: 'Last run', class: 'wide', cell: c => moment(c.last_run_at) },
                { head: 'Runs', class: 'number wide', cell: c => number(c.run_count) },
                {
                    head: '',
                    class: 'right',
                    cell: c => [
                        action(
                            'admin',
                            'Run now',
                            async () => {
                                const { job } = await call('POST', path`cron/${c.name}/trigger`);
                                say(['Pushed: ', job.id ? jobLink(job.id) : 'nothing, a hook dropped it']);
                                refresh();
                            },
                            { label: `Run ${c.name} now` },
                        ),
                        action(
                            'admin',
                            c.enabled ? 'Disable' : 'Enable',
                            () =>
                                done(
                                    'PATCH',
                                    path`cron/${c.name}`,
                                    c.enabled ? 'The entry rests.' : 'The entry runs.',
                                    { enabled: !c.enabled },
                                ),
                            { label: `${c.enabled ? 'Disable' : 'Enable'} ${c.name}` },
                        ),
                        action(
                            'admin',
                            'Edit',
                            async () => {
                                if (await edit(c)) {
                                    say('The entry is saved.');
                                    refresh();
                                }
                            },
                            { label: `Edit ${c.name}` },
                        ),
                        action(
                            'admin',
                            'Remove',
                            async () =>
                                (await sure(`Remove ${c.name}?`, 'The jobs that it has pushed stay.', 'Remove')) &&
                                (await done('DELETE', path`cron/${c.name}`, 'The entry is removed.')),
                            { class: 'danger', label: `Remove ${c.name}` },
                        ),
                    ],
                },
            ],
            crons,
            c => c.name,
            'Nothing is pushed by the clock.',
        ),
        pager('cron', values, pagination),
    ];
}

function edit(entry) {
    const template = entry ? entry.job_template : { type: 'report.nightly', args: [], options: { queue: 'default' } };
    return ask({
        title: entry ? `Edit ${entry.name}` : 'New cron entry',
        fields: [
            ...(entry ? [] : [{ name: 'name', label: 'Name', required: true }]),
            {
                name: 'cron',
                label: 'Expression',
                required: true,
                value: entry?.expression ?? '0 3 * * *',
                hint: 'Minute, hour, day of month, month, day of week; or @hourly, @daily, …',
            },
            {
                name: 'timezone',
                label: 'Time zone',
                value: entry?.timezone ?? Intl.DateTimeFormat().resolvedOptions().timeZone,
            },
            {
                name: 'overlap_policy',
                label: 'If the previous job is not done',
                type: 'select',
                value: entry?.overlap_policy ?? 'skip',
                options: ['skip', 'allow', 'enqueue', 'cancel_previous'],
            },
            { name: 'description', label: 'Description', value: entry?.description },
            { name: 'job_template', label: 'Job', type: 'json', rows: 8, value: json(template) },
        ],
        check: ({ name, description, timezone, ...rest }) => {
            const body = {
                ...rest,
                ...(timezone && { timezone }),
                ...((description || entry?.description) && { description }),
            };
            return entry ? call('PUT', path`cron/${entry.name}`, body) : call('POST', 'cron', { name, ...body });
        },
    });
}
