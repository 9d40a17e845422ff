// workflows.js: workflows, and one of them as a graph.
import { h, json, moment, number } from './dom.js';
import { Problem, call, get, path, query } from './api.js';
import {
    action,
    actions,
    badge,
    bar,
    code,
    facts,
    filters,
    jobLink,
    link,
    pager,
    panel,
    say,
    sure,
    table,
} from './widgets.js';
import { graph } from './graph.js';

export const title = ({ id }) => (id ? `Workflow ${id.slice(0, 8)}` : 'Workflows');

export async function view({ id, values, signal, refresh }) {
    return id ? one(id, signal, refresh) : list(values, signal);
}

async function list(values, signal) {
    const { state, cursor } = values;
    const { workflows, pagination } = await get('workflows' + query({ limit: 50, state, cursor }), signal);
    return [
        filters('workflows', { state }, [
            {
                name: 'state',
                label: 'State',
                type: 'select',
                options: [['', 'any'], 'running', 'completed', 'failed', 'cancelled'],
            },
        ]),
        table(
            'Workflows',
            [
                { head: 'Workflow', cell: w => link(`/workflows/${w.id}`, w.id.slice(0, 8) + '…' + w.id.slice(-6)) },
                { head: 'Name', class: 'long', cell: w => w.name },
                { head: 'Type', cell: w => w.type },
                { head: 'State', cell: w => badge(w.state) },
                { head: 'Done', cell: w => bar((w.completed + w.failed) / w.members) },
                { head: 'Jobs', class: 'number wide', cell: w => number(w.job_count) },
                { head: 'Failed', class: 'number wide', cell: w => number(w.failed) },
                { head: 'Made', class: 'wide', cell: w => moment(w.created_at) },
                { head: 'Ended', cell: w => moment(w.ended_at) },
            ],
            workflows,
            w => w.id,
            'No workflow is like that.',
        ),
        pager('workflows', values, pagination),
    ];
}

async function one(id, signal, refresh) {
    const whole = await tree(id, signal, { left: 40 });
    const { metadata } = whole;
    return [
        h(
            'p',
            { class: 'headline' },
            badge(whole.state),
            ' ',
            h('b', {}, whole.name ?? whole.type),
            whole.parent_workflow_id && [' in ', link(`/workflows/${whole.parent_workflow_id}`, 'its parent')],
        ),
        actions(
            whole.state === 'running' &&
                action(
                    'produce',
                    'Cancel',
                    async () => {
                        if (
                            !(await sure(
                                'Cancel this workflow?',
                                'Jobs that wait are cancelled; active ones may end.',
                                'Cancel the workflow',
                            ))
                        )
                            return;
                        await call('DELETE', path`workflows/${id}`);
                        say('The workflow is cancelled.');
                        refresh();
                    },
                    { class: 'danger' },
                ),
        ),
        facts(
            ['Type', whole.type],
            ['Jobs', number(metadata.job_count)],
            ['Completed', number(metadata.completed_count)],
            ['Failed', number(metadata.failed_count)],
            ['Made', moment(metadata.created_at)],
            ['Started', moment(metadata.started_at)],
            ['Ended', moment(metadata.completed_at ?? metadata.cancelled_at)],
        ),
        panel(
            'Graph',
            h('div', { class: 'scroll graph', tabindex: 0, role: 'region', 'aria-label': 'Graph' }, graph(whole)),
        ),
        whole.errors?.length > 0 &&
            panel(
                'Errors',
                table(
                    'Errors',
                    [
                        { head: 'Member', cell: e => e.callback ?? String(e.index) },
                        {
                            head: 'Job',
                            cell: e =>
                                e.job_id
                                    ? jobLink(e.job_id)
                                    : e.workflow_id && link(`/workflows/${e.workflow_id}`, 'workflow'),
                        },
                        { head: 'Error', class: 'long', cell: e => `${e.type ?? e.code ?? ''} ${e.message ?? ''}` },
                    ],
                    whole.errors,
                    e => e.job_id ?? e.workflow_id,
                ),
            ),
        h(
            'details',
            { class: 'panel', key: 'all' },
            h('summary', {}, 'All attributes'),
            code(json({ ...whole, inner: undefined })),
        ),
    ];
}

// A workflow with those within it, as far as the allowance of calls goes.
async function tree(id, signal, allowance) {
    const { workflow } = await get(path`workflows/${id}`, signal);
    workflow.inner = {};
    const members = [...(workflow.steps ?? workflow.jobs ?? []), ...Object.values(workflow.callbacks ?? {})];
    await Promise.all(
        members
            .filter(member => member.workflow_id && allowance.left-- > 0)
            .map(async member => {
                try {
                    workflow.inner[member.workflow_id] = await tree(member.workflow_id, signal, allowance);
                } catch (problem) {
                    if (!(problem instanceof Problem && problem.status === 404))
                        /* it may have been removed meanwhile */
                        throw problem;
                }
            }),
    );
    return workflow;
}
