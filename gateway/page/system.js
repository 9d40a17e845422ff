// system.js: how the server is, maintenance, settings.
import { h, json, moment, span } from './dom.js';
import { call, get, health } from './api.js';
import { action, actions, ask, badge, code, facts, panel, say, settings } from './widgets.js';

export const title = () => 'System';

export async function view({ signal, refresh }) {
    const [state, maintenance, shown] = await Promise.all([
        health(signal),
        get('admin/system/maintenance', signal),
        get('admin/system/config', signal),
    ]);
    return [
        panel(
            'Health',
            facts(
                ['Status', badge(state.status === 'ok' ? 'active' : 'failed', state.status)],
                ['Version', state.version],
                ['Up', span(state.uptime_seconds)],
                ['Background worker', state.worker?.state],
                ['Last upkeep', moment(state.upkeep?.last_pass)],
                [
                    'Failing duties',
                    state.upkeep?.failing?.map(duty => (typeof duty === 'object' ? json(duty) : duty)).join(', '),
                ],
                [
                    'Overdue duties',
                    state.upkeep?.overdue?.map(duty => (typeof duty === 'object' ? json(duty) : duty)).join(', '),
                ],
                ['Hot set', state.hot_set?.state],
                ['Wake-up', state.wake_up],
                ['Counting', state.counting],
                ['Preloaded', state.preloaded ? 'yes' : 'no'],
                ['Standby', state.in_recovery ? 'yes' : 'no'],
            ),
            h('details', { key: 'health' }, h('summary', {}, 'All that it says'), code(json(state))),
        ),
        panel(
            'Maintenance',
            h(
                'p',
                {},
                maintenance.enabled
                    ? [
                          'On since ',
                          moment(maintenance.started_at),
                          maintenance.reason && `: ${maintenance.reason}`,
                          maintenance.ends_at && [', to end ', moment(maintenance.ends_at)],
                          '. Workers get no jobs; pushes go on.',
                      ]
                    : 'Off. While it is on, workers get no jobs, cron and promotion wait, and pushes go on.',
            ),
            actions(
                maintenance.enabled
                    ? action(
                          'admin',
                          'End maintenance',
                          async () => {
                              await call('POST', 'admin/system/maintenance', { enabled: false });
                              say('Work goes on.');
                              refresh();
                          },
                          { class: 'primary' },
                      )
                    : action('admin', 'Begin maintenance', () => begin(refresh), { class: 'danger' }),
            ),
        ),
        panel('Settings', settings(shown.config)),
    ];
}

async function begin(refresh) {
    const begun = await ask({
        title: 'Begin maintenance',
        confirm: 'Begin',
        danger: true,
        text: 'Workers get no more jobs until it is ended, past restarts too.',
        fields: [
            { name: 'reason', label: 'Reason' },
            { name: 'minutes', label: 'About how many minutes', type: 'number', min: 1, step: 1 },
        ],
        check: ({ reason, minutes }) =>
            call('POST', 'admin/system/maintenance', {
                enabled: true,
                ...(reason && { reason }),
                ...(minutes && { estimated_duration: `PT${minutes}M` }),
            }),
    });
    if (begun) {
        say('Maintenance has begun.');
        refresh();
    }
}
