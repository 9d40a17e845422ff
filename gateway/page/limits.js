// limits.js: rate limits by key, and what of them is used.
import { h, moment, number } from './dom.js';
import { call, get, path } from './api.js';
import { action, actions, ask, link, say, sure, table, to } from './widgets.js';

export const title = () => 'Rate limits';

export async function view({ values, signal, refresh }) {
    const page = Math.max(1, Number(values.page) || 1);
    const { items, pagination } = await get(`rate-limits?per_page=50&page=${page}`, signal);
    const set = async limit => {
        if (await edit(limit)) {
            say('The limit is set.');
            refresh();
        }
    };
    return [
        actions(action('admin', 'Set a limit', () => set(null))),
        table(
            'Rate limits',
            [
                { head: 'Key', class: 'long', cell: l => l.key },
                {
                    head: 'At once',
                    cell: l => l.concurrency && `${number(l.concurrency.active)} of ${number(l.concurrency.limit)}`,
                },
                {
                    head: 'Starts',
                    cell: l =>
                        l.rate && `${number(l.rate.current_count)} of ${number(l.rate.limit)} per ${l.rate.period}`,
                },
                {
                    head: 'Spread',
                    class: 'wide',
                    cell: l => l.throttle && `${number(l.throttle.limit)} per ${l.throttle.period}`,
                },
                { head: 'Waiting', class: 'number', cell: l => number(l.waiting_count) },
                { head: 'Free again', class: 'wide', cell: l => moment(l.paused_until ?? l.rate?.window_resets_at) },
                {
                    head: 'Set by hand',
                    class: 'wide',
                    cell: l =>
                        l.override
                            ? ['until ', l.override_expires_at ? moment(l.override_expires_at) : 'taken back']
                            : '',
                },
                {
                    head: '',
                    class: 'right',
                    cell: l => [
                        action('admin', 'Change', () => set(l), { label: `Change ${l.key}` }),
                        l.override &&
                            action(
                                'admin',
                                'Take back',
                                async () => {
                                    if (
                                        !(await sure(
                                            `Take back the limit on ${l.key}?`,
                                            'What jobs and queues say counts again.',
                                            'Take back',
                                        ))
                                    )
                                        return;
                                    await call('DELETE', path`rate-limits/${l.key}`);
                                    say('The limit is taken back.');
                                    refresh();
                                },
                                { label: `Take back ${l.key}` },
                            ),
                    ],
                },
            ],
            items,
            l => l.key,
            'No job and no queue states a limit.',
        ),
        pagination.total > 50 &&
            h(
                'nav',
                { class: 'pager', 'aria-label': 'Pages' },
                page > 1 && link(to('rate-limits', { page: page - 1 }), 'Previous page'),
                page * 50 < pagination.total && link(to('rate-limits', { page: page + 1 }), 'Next page'),
            ),
    ];
}

function edit(limit) {
    return ask({
        title: limit ? `Limit on ${limit.key}` : 'Set a limit',
        text: 'Lies over what jobs and queues say, until it is taken back.',
        fields: [
            ...(limit
                ? []
                : [
                      {
                          name: 'key',
                          label: 'Key',
                          required: true,
                          hint: 'As jobs name it; queue:NAME for a queue as a whole.',
                      },
                  ]),
            {
                name: 'concurrency',
                label: 'Jobs at once',
                type: 'number',
                min: 0,
                step: 1,
                value: limit?.concurrency?.limit,
            },
            { name: 'rate', label: 'Starts', type: 'number', min: 1, step: 1, value: limit?.rate?.limit },
            { name: 'period', label: 'within', value: limit?.rate?.period ?? 'PT1M', hint: 'A duration such as PT1M.' },
            {
                name: 'hours',
                label: 'For how many hours',
                type: 'number',
                min: 0,
                step: 'any',
                hint: 'Empty: until it is taken back.',
            },
        ],
        check: ({ key, concurrency, rate, period, hours }) => {
            if (concurrency === null && rate === null) throw new Error('Give a number of jobs at once, or of starts.');
            return call('PUT', path`rate-limits/${limit?.key ?? key}`, {
                ...(concurrency !== null && { concurrency }),
                ...(rate !== null && { rate: { limit: rate, period } }),
                ...(hours && { expires_at: new Date(Date.now() + hours * 3600000).toISOString() }),
            });
        },
    });
}
