// queues.js: the list of queues, and one of them.
import { h, json, milliseconds, moment, number } from './dom.js';
import { call, get, path, query } from './api.js';
import { charts, historyOf } from './dashboard.js';
import { action, actions, ask, badge, facts, link, panel, queueLink, say, settings, table, to } from './widgets.js';

const states = ['available', 'active', 'scheduled', 'retryable', 'pending', 'completed', 'cancelled', 'discarded'];

export const title = ({ id }) => (id ? `Queue ${id}` : 'Queues');

export async function view({ id, values, signal, refresh }) {
    return id ? one(id, signal, refresh) : list(values, signal, refresh);
}

async function list(values, signal, refresh) {
    const page = Math.max(1, Number(values.page) || 1);
    const { items, pagination } = await get(`admin/queues?per_page=50&page=${page}`, signal);
    return [
        actions(
            action('admin', 'New queue', async () => {
                const made = await ask({
                    title: 'New queue',
                    confirm: 'Create',
                    fields: [
                        {
                            name: 'name',
                            label: 'Name',
                            required: true,
                            pattern: '[a-z0-9][a-z0-9_.\\-]*',
                            hint: 'Small letters, digits, dots, hyphens and underscores.',
                        },
                    ],
                    check: ({ name }) => call('POST', 'queues', { name }),
                });
                if (made) {
                    say('The queue is there.');
                    refresh();
                }
            }),
        ),
        table(
            'Queues',
            [
                { head: 'Queue', cell: q => queueLink(q.name) },
                { head: 'State', cell: q => badge(q.state) },
                ...states.map(state => ({
                    head: state[0].toUpperCase() + state.slice(1),
                    class: 'number' + (['available', 'active', 'discarded'].includes(state) ? '' : ' wide'),
                    cell: q => count(q.name, state, q.counts[state]),
                })),
                { head: '', class: 'right', cell: q => pauseButton(q, refresh) },
            ],
            items,
            q => q.name,
            'There is no queue yet: the first push makes one.',
        ),
        pagination.total > 50 &&
            h(
                'nav',
                { class: 'pager', 'aria-label': 'Pages' },
                page > 1 && link(to('queues', { page: page - 1 }), 'Previous page'),
                page * 50 < pagination.total && link(to('queues', { page: page + 1 }), 'Next page'),
            ),
    ];
}

const count = (queue, state, n) => (n ? link(to('jobs', { queue, state }), number(n)) : '0');

function pauseButton(queue, refresh) {
    const paused = queue.state !== 'active';
    return action(
        'admin',
        paused ? 'Resume' : 'Pause',
        async () => {
            await call('POST', path`admin/queues/${queue.name}/` + (paused ? 'resume' : 'pause'));
            say(paused ? `${queue.name} goes on.` : `${queue.name} hands out no more jobs.`);
            refresh();
        },
        { label: `${paused ? 'Resume' : 'Pause'} ${queue.name}` },
    );
}

async function one(name, signal, refresh) {
    const [queue, history] = await Promise.all([
        get(path`admin/queues/${name}`, signal),
        historyOf('1h', name, signal),
    ]);
    const stats = queue.stats;
    return [
        actions(
            pauseButton(queue, refresh),
            action('admin', 'Configure', () => configure(queue, refresh)),
            action('admin', 'Purge', () => purge(queue, refresh), { class: 'danger' }),
            action('admin', 'Delete', () => drop(queue), { class: 'danger' }),
        ),
        facts(
            ['State', badge(queue.state)],
            ['Made', moment(queue.created_at)],
            ['Type', queue.type],
            ['Waits', milliseconds(stats.avg_wait_ms)],
            ['Runs', milliseconds(stats.avg_duration_ms)],
            ['Done in the last hour', number(stats.completed_last_hour)],
            ['Failed in the last hour', number(stats.failed_last_hour)],
        ),
        h(
            'ul',
            { class: 'tiles' },
            states.map(state =>
                h(
                    'li',
                    {},
                    h(
                        'a',
                        { href: '#' + to('jobs', { queue: name, state }) },
                        h('b', {}, number(stats[state] ?? 0)),
                        h('span', {}, state),
                    ),
                ),
            ),
        ),
        h('div', { class: 'charts' }, charts(history)),
        panel('Settings', settings(queue.config)),
    ];
}

async function configure(queue, refresh) {
    const before = queue.config;
    const saved = await ask({
        title: `Settings of ${queue.name}`,
        text: 'Only what you change is sent. null sets a setting back to its default.',
        fields: [{ name: 'config', label: 'Settings', type: 'json', rows: 18, value: json(before) }],
        check: ({ config }) => {
            if (config === null || typeof config !== 'object' || Array.isArray(config))
                throw new Error('Settings are a JSON object.');
            const changed = Object.entries(config).filter(
                ([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name]),
            );
            const removed = Object.keys(before)
                .filter(name => !(name in config))
                .map(name => [name, null]);
            if (changed.length + removed.length === 0) throw new Error('Nothing is changed.');
            return call('PUT', path`admin/queues/${queue.name}/config`, Object.fromEntries([...changed, ...removed]));
        },
    });
    if (saved) {
        say('The settings are saved.');
        refresh();
    }
}

async function purge(queue, refresh) {
    const answer = await ask({
        title: `Purge ${queue.name}`,
        confirm: 'Remove for good',
        danger: true,
        text: 'Removes jobs of these states with their history. This cannot be undone.',
        fields: states
            .filter(state => state !== 'active')
            .map(state => ({ name: state, type: 'checkbox', label: `${state} (${number(queue.stats[state] ?? 0)})` })),
        check: chosen => {
            const named = Object.keys(chosen).filter(state => chosen[state]);
            if (named.length === 0) throw new Error('Choose at least one state.');
            return call('DELETE', path`admin/queues/${queue.name}/jobs`, { states: named, confirm: true });
        },
    });
    if (answer) {
        say(`${number(answer.purged_count)} jobs are removed.`);
        refresh();
    }
}

async function drop(queue) {
    const deleted = await ask({
        title: `Delete ${queue.name}?`,
        text: 'Its settings go with it.',
        confirm: 'Delete the queue',
        danger: true,
        fields: [
            {
                name: 'strategy',
                label: 'Unfinished jobs',
                type: 'select',
                options: [
                    ['reject', 'must not be there'],
                    ['discard', 'are discarded'],
                    ['move', 'move to another queue'],
                ],
            },
            { name: 'target', label: 'Other queue', hint: 'Only if they move.' },
        ],
        check: ({ strategy, target }) =>
            call(
                'DELETE',
                path`admin/queues/${queue.name}` + query({ strategy, target: strategy === 'move' ? target : '' }),
            ),
    });
    if (deleted) {
        say(`${queue.name} is deleted.`);
        location.hash = '/queues';
    }
}
