// events.js: events as they happen.
import { clock, h, show } from './dom.js';
import { eventsOf, query } from './api.js';
import { badge, complain, filters, jobLink, queueLink } from './widgets.js';

export const title = () => 'Events';
export const pause = () => 0; /* the stream brings them */

const most = 200;

export async function view({ values, signal }) {
    const { types, queues } = values;
    const state = h('span', { class: 'badge' }, 'connecting'),
        rows = h('tbody', {});
    const empty = h('p', { class: 'empty' }, 'Nothing has happened since this page was opened.');
    let held = false,
        waiting = [];
    const stop = h(
        'button',
        {
            type: 'button',
            'aria-pressed': 'false',
            onclick: () => {
                held = !held;
                stop.setAttribute('aria-pressed', held);
                stop.textContent = held ? 'Go on' : 'Hold';
                if (!held) paint();
            },
        },
        'Hold',
    );
    function paint() {
        if (held || waiting.length === 0) return;
        rows.prepend(...waiting.reverse().map(row));
        waiting = [];
        while (rows.children.length > most) rows.lastChild.remove();
        empty.hidden = true;
    }
    follow(query({ types, queues }), signal, (word, event) => {
        state.textContent = word;
        state.className = `badge ${word === 'live' ? 'active' : 'retryable'}`;
        if (event) {
            waiting = [...waiting, event].slice(-most);
            requestAnimationFrame(paint);
        }
    });
    const region = h(
        'div',
        { class: 'scroll', tabindex: 0, role: 'log', 'aria-label': 'Events', 'aria-live': 'off' },
        h(
            'table',
            {},
            h(
                'thead',
                {},
                h(
                    'tr',
                    {},
                    ['Time', 'Event', 'Job', 'Queue', 'What'].map((head, i) =>
                        h('th', { scope: 'col', class: i === 4 ? 'long' : '' }, head),
                    ),
                ),
            ),
            rows,
        ),
    );
    return [
        filters('events', { types, queues }, [
            { name: 'types', label: 'Types', placeholder: 'job.failed, cron.*' },
            { name: 'queues', label: 'Queues', placeholder: 'any' },
        ]),
        h('p', { class: 'count', key: 'bar' }, state, stop),
        h('div', { key: 'events' }, empty, region),
    ];
}

async function follow(target, signal, tell) {
    try {
        for await (const { type, data } of eventsOf('events/stream' + target, signal))
            tell(type === 'closed' ? 'coming back' : 'live', type === 'event' && data.type ? data : null);
    } catch (problem) {
        if (!signal.aborted) {
            tell('ended', null);
            complain(problem);
        }
    }
}

function row(event) {
    const { job_id, queue, job_type, state, last_error, error, ...more } = event.data ?? {};
    const details = Object.entries({ ...more, ...((error ?? last_error) && { error: (error ?? last_error).message }) })
        .filter(([, value]) => value !== null)
        .map(([name, value]) => `${name} ${typeof value === 'object' ? JSON.stringify(value) : value}`)
        .join(', ');
    const tr = h('tr', {});
    show(tr, [
        h('td', {}, h('time', { datetime: event.time, title: event.time }, clock(new Date(event.time)))),
        h('td', {}, badge(event.type.split('.')[1] ?? '', event.type)),
        h('td', {}, job_id && jobLink(job_id), ' ', job_type),
        h('td', {}, queue && queueLink(queue)),
        h('td', { class: 'long' }, details),
    ]);
    return tr;
}
