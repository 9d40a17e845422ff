// dashboard.js: the whole at a glance.
import { h, number, milliseconds } from './dom.js';
import { get, health, query } from './api.js';
import { chart } from './charts.js';
import { input, link, panel, queueLink, table, to } from './widgets.js';

const ranges = {
    '1h': ['1 hour', 3600, '5m', 300],
    '24h': ['24 hours', 86400, '1h', 3600],
    '7d': ['7 days', 7 * 86400, '1d', 86400],
};

export const title = () => 'Dashboard';
// Longer ranges are counted in the jobs that are kept, so they are not read again and again.
export const pause = values => (values.range && values.range !== '1h' ? 60000 : 5000);

export async function view({ values, signal }) {
    const [stats, history, state, queues] = await Promise.all([
        get('admin/stats', signal),
        historyOf(values.range, values.queue, signal),
        health(signal),
        get('admin/queues?per_page=100', signal),
    ]);
    return [
        tiles(stats),
        trouble(state),
        chosen(values, queues.items),
        h('div', { class: 'charts' }, charts(history)),
        panel(
            'Queues',
            table(
                'Queues',
                [
                    { head: 'Queue', cell: q => queueLink(q.name) },
                    { head: 'State', cell: q => h('span', { class: `badge ${q.state}` }, q.state) },
                    { head: 'Available', class: 'number', cell: q => number(q.counts.available) },
                    { head: 'Active', class: 'number', cell: q => number(q.counts.active) },
                    {
                        head: 'Delayed',
                        class: 'number wide',
                        cell: q => number(q.counts.scheduled + q.counts.retryable),
                    },
                    { head: 'Done per minute', class: 'number', cell: q => rate(q.throughput.processed_per_minute) },
                    {
                        head: 'Failed per minute',
                        class: 'number wide',
                        cell: q => rate(q.throughput.failed_per_minute),
                    },
                    { head: 'Waits', class: 'number wide', cell: q => milliseconds(q.counts.avg_wait_ms) },
                    { head: 'Runs', class: 'number wide', cell: q => milliseconds(q.counts.avg_duration_ms) },
                ],
                busiest(queues.items),
                q => q.name,
                'There is no queue yet: the first push makes one.',
            ),
            queues.pagination.total > 10 &&
                h('p', {}, link('/queues', `All ${number(queues.pagination.total)} queues`)),
        ),
    ];
}

const rate = n => (n === 0 ? '0' : n < 10 ? n.toFixed(2) : number(Math.round(n)));
const busiest = queues =>
    [...queues]
        .sort(
            (a, b) =>
                b.counts.available + b.counts.active - a.counts.available - a.counts.active ||
                (a.name < b.name ? -1 : 1),
        )
        .slice(0, 10);

function tiles(stats) {
    const jobs = state => [number(stats.jobs[state]), state, to('jobs', { state })];
    return h(
        'ul',
        { class: 'tiles' },
        [
            jobs('available'),
            jobs('active'),
            jobs('scheduled'),
            jobs('retryable'),
            jobs('pending'),
            jobs('completed'),
            jobs('discarded'),
            [number(stats.workers), stats.workers === 1 ? 'worker' : 'workers', '/workers'],
        ].map(([value, text, target]) =>
            h('li', {}, h('a', { href: '#' + target }, h('b', {}, value), h('span', {}, text))),
        ),
    );
}

function trouble(state) {
    if (state.status === 'ok') return null;
    return h(
        'p',
        { class: 'banner', role: 'alert' },
        `The server says it is ${state.status}. `,
        link('/system', 'See what is wrong'),
    );
}

function chosen(values, queues) {
    const change = event => {
        const form = event.currentTarget;
        location.hash = to('dashboard', { range: form.elements.range.value, queue: form.elements.queue.value });
    };
    return h(
        'form',
        {
            class: 'filters',
            key: 'chosen ' + queues.length,
            onchange: change,
            onsubmit: event => event.preventDefault(),
        },
        h(
            'label',
            {},
            h('span', {}, 'Range'),
            input({
                type: 'select',
                name: 'range',
                value: values.range ?? '1h',
                options: Object.entries(ranges).map(([name, [words]]) => [name, words]),
            }),
        ),
        h(
            'label',
            {},
            h('span', {}, 'Queue'),
            input({
                type: 'select',
                name: 'queue',
                value: values.queue,
                options: [['', 'all queues'], ...queues.map(q => q.name)],
            }),
        ),
    );
}

export async function historyOf(range, queue, signal) {
    const [words, length, period, step] = ranges[range] ?? ranges['1h'];
    const until = Math.ceil(Date.now() / 1000 / step) * step * 1000,
        from = until - length * 1000;
    const { data } = await get(
        'admin/stats/history' +
            query({ period, since: new Date(from).toISOString(), until: new Date(until).toISOString(), queue }),
        signal,
    );
    return { data, from, until, step, words };
}

export function charts({ data, from, until, step, words }) {
    const per = step === 300 ? 5 : step === 3600 ? 60 : 1440;
    const inside = data
        .map(point => ({ ...point, at: Date.parse(point.timestamp) }))
        .filter(({ at }) => at >= from - step * 1000 && at <= Date.now());
    const lengthOf = ({ at }) => Math.max(1, Math.min(per, (Date.now() - at) / 60000));
    const line = (name, style, value) => ({
        name,
        class: style,
        points: inside.map(point => [Math.max(point.at, from), value(point)]).filter(([, v]) => v !== undefined),
    });
    return [
        chart({
            title: `Jobs per minute, ${words}`,
            from,
            until,
            format: n => (n === undefined ? '' : rate(n)),
            series: [
                line('pushed', 'pushed', p => (p.enqueued === undefined ? undefined : p.enqueued / lengthOf(p))),
                line('done', 'completed', p => p.processed / lengthOf(p)),
                line('failed', 'failed', p => p.failed / lengthOf(p)),
            ],
        }),
        chart({
            title: `Mean latency, ${words}`,
            from,
            until,
            format: n => (n === 0 ? '0' : milliseconds(n)),
            series: [line('waits', 'waits', p => p.avg_wait_ms), line('runs', 'runs', p => p.avg_duration_ms)],
        }),
    ];
}
