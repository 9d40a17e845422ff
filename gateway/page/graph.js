// graph.js: a workflow as boxes and arrows, from left to right.
import { svg } from './dom.js';

const box = { width: 168, height: 44 },
    gap = { x: 36, y: 14 },
    edge = 18,
    head = 24;
const most = 60; /* boxes of one group */

// A drawing is {width, height, draw(x, y)}, whose arrows come in at the middle of its left side and leave at the right.
export function graph(workflow) {
    const { width, height, draw } = whole(workflow);
    return svg(
        'svg',
        {
            width: width + 4,
            height: height + 4,
            viewBox: `-2 -2 ${width + 4} ${height + 4}`,
            role: 'group',
            'aria-label': `${workflow.type} of ${workflow.job_count} jobs`,
        },
        svg(
            'defs',
            {},
            svg(
                'marker',
                { id: 'arrow', viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: 'auto' },
                svg('path', { d: 'M0 0 8 4 0 8z' }),
            ),
        ),
        draw(0, 0),
    );
}

function whole(workflow) {
    const members = (workflow.steps ?? workflow.jobs ?? []).map(member => part(member, workflow));
    const main = workflow.type === 'chain' ? row(members) : column(members);
    const callbacks = Object.entries(workflow.callbacks ?? {}).map(([name, member]) =>
        part({ ...member, name }, workflow),
    );
    return callbacks.length > 0 ? row([main, column(callbacks)]) : main;
}

function part(member, workflow) {
    const inner = workflow.inner?.[member.workflow_id];
    return inner ? frame(member, inner) : leaf(member);
}

// A job, or a workflow that is not looked into.
function leaf(member) {
    const target = member.job_id
        ? `#/jobs/${member.job_id}`
        : member.workflow_id
          ? `#/workflows/${member.workflow_id}`
          : null;
    const name = member.type ?? (member.workflow_id ? 'workflow' : 'job');
    const second = [member.name, member.state, member.error?.message].filter(Boolean).join(' · ');
    const shape = (x, y) => [
        svg('title', {}, `${name}: ${second}`),
        svg('rect', { x, y, width: box.width, height: box.height, rx: 4 }),
        svg('text', { class: 'name', x: x + 10, y: y + 18 }, short(name, 24)),
        svg('text', { x: x + 10, y: y + 35 }, short(second, 26)),
    ];
    return {
        ...box,
        draw: (x, y) =>
            target
                ? svg('a', { href: target, class: `node ${member.state}` }, shape(x, y))
                : svg('g', { class: `node ${member.state}` }, shape(x, y)),
    };
}

const short = (text, length) => (text.length > length ? text.slice(0, length - 1) + '…' : text);

// A workflow within another, in a frame that bears its name.
function frame(member, inner) {
    const content = whole(inner);
    return {
        width: content.width + 2 * edge,
        height: content.height + edge + head,
        draw: (x, y) =>
            svg(
                'g',
                { class: `frame ${inner.state}` },
                svg('rect', { x, y, width: content.width + 2 * edge, height: content.height + edge + head, rx: 6 }),
                svg(
                    'a',
                    { href: `#/workflows/${inner.id}` },
                    svg(
                        'text',
                        { x: x + edge, y: y + 16 },
                        short(
                            [member.name, inner.name ?? inner.type, inner.state].filter(Boolean).join(' · '),
                            Math.floor(content.width / 7),
                        ),
                    ),
                ),
                content.draw(x + edge, y + head),
            ),
    };
}

// One after the other, with arrows between them.
function row(parts) {
    const height = Math.max(...parts.map(part => part.height), box.height);
    const width = parts.reduce((sum, part) => sum + part.width, 0) + gap.x * Math.max(0, parts.length - 1);
    return {
        width,
        height,
        draw: (x, y) => {
            const middle = y + height / 2;
            return parts.map((part, i) => {
                const drawn = [
                    part.draw(x, middle - part.height / 2),
                    i > 0 &&
                        svg('path', {
                            class: 'arrow',
                            d: `M${x - gap.x} ${middle}H${x - 1}`,
                            'marker-end': 'url(#arrow)',
                        }),
                ];
                x += part.width + gap.x;
                return drawn;
            });
        },
    };
}

// All at once, between two bars.
function column(all) {
    const parts =
        all.length <= most
            ? all
            : [...all.slice(0, most - 1), leaf({ type: `${all.length - most + 1} more`, state: 'not drawn' })];
    const inner = Math.max(...parts.map(part => part.width), box.width);
    const height = parts.reduce((sum, part) => sum + part.height, 0) + gap.y * Math.max(0, parts.length - 1);
    if (parts.length === 1) return parts[0];
    return {
        width: inner + 2 * gap.x,
        height,
        draw: (x, y) => {
            const lines = [
                svg('path', {
                    class: 'fork',
                    d: `M${x} ${y}V${y + height}M${x + inner + 2 * gap.x} ${y}V${y + height}`,
                }),
            ];
            for (const part of parts) {
                const middle = y + part.height / 2,
                    end = x + gap.x + part.width;
                lines.push(
                    part.draw(x + gap.x, y),
                    svg('path', { class: 'arrow', d: `M${x} ${middle}H${x + gap.x - 1}`, 'marker-end': 'url(#arrow)' }),
                    svg('path', { class: 'arrow', d: `M${end} ${middle}H${x + inner + 2 * gap.x}` }),
                );
                y += part.height + gap.y;
            }
            return lines;
        },
    };
}
