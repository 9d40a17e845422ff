// workers.js: who works, and what it is told.
import { h, moment, number, span } from './dom.js';
import { call, get, path } from './api.js';
import { action, badge, link, say, sure, table, to } from './widgets.js';

export const title = () => 'Workers';

export async function view({ values, signal, refresh }) {
    const page = Math.max(1, Number(values.page) || 1);
    const { items, summary, pagination } = await get(`admin/workers?per_page=50&page=${page}`, signal);
    const tell = (worker, verb, text) =>
        action(
            'admin',
            verb[0].toUpperCase() + verb.slice(1),
            async () => {
                await call('POST', path`admin/workers/${worker.id}/` + verb);
                say(text);
                refresh();
            },
            { label: `${verb} ${worker.id}`, key: verb + ' ' + worker.id },
        );
    return [
        h(
            'p',
            { class: 'count' },
            `${number(summary.running)} running, ${number(summary.quiet)} quiet, ` +
                `${number(summary.stale)} stale or dead`,
        ),
        table(
            'Workers',
            [
                { head: 'Worker', class: 'long', cell: w => w.id },
                { head: 'State', cell: w => badge(w.status) },
                { head: 'Says', class: 'wide', cell: w => w.reported_state },
                { head: 'Host', class: 'wide', cell: w => [w.hostname, w.pid && ` (${w.pid})`] },
                { head: 'Queues', class: 'long wide', cell: w => w.queues?.join(', ') },
                {
                    head: 'Jobs',
                    class: 'number',
                    cell: w => [number(w.active_jobs), w.concurrency && ` of ${w.concurrency}`],
                },
                {
                    head: 'Up',
                    class: 'wide',
                    cell: w => w.started_at && span((Date.now() - Date.parse(w.started_at)) / 1000),
                },
                { head: 'Last seen', cell: w => moment(w.last_heartbeat_at) },
                {
                    head: '',
                    class: 'right',
                    cell: w =>
                        ['stale', 'dead'].includes(w.status)
                            ? action(
                                  'admin',
                                  'Remove',
                                  async () => {
                                      if (
                                          !(await sure(
                                              `Remove ${w.id}?`,
                                              'The jobs that it still holds are given back.',
                                              'Remove',
                                          ))
                                      )
                                          return;
                                      await call('DELETE', path`admin/workers/${w.id}`);
                                      say(`${w.id} is removed.`);
                                      refresh();
                                  },
                                  { class: 'danger', label: `Remove ${w.id}`, key: 'remove ' + w.id },
                              )
                            : [
                                  w.status !== 'running'
                                      ? tell(w, 'resume', `${w.id} is told to go on.`)
                                      : tell(w, 'quiet', `${w.id} is told to take no more jobs.`),
                                  tell(w, 'terminate', `${w.id} is told to end.`),
                              ],
                },
            ],
            items,
            w => w.id,
            'No worker has shown itself.',
        ),
        pagination.total > 50 &&
            h(
                'nav',
                { class: 'pager', 'aria-label': 'Pages' },
                page > 1 && link(to('workers', { page: page - 1 }), 'Previous page'),
                page * 50 < pagination.total && link(to('workers', { page: page + 1 }), 'Next page'),
            ),
    ];
}
