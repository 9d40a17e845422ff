// widgets.js: what the views are made of: tables, forms, dialogs, notices.
import { h, svg, show } from './dom.js';
import { may } from './api.js';

export const link = (to, ...text) => h('a', { href: '#' + to }, ...text);
export const badge = (state, text = state) => h('span', { class: `badge ${state}` }, text);

// A hash that names a view with what it is to show.
export function to(view, parameters = {}) {
    const given = Object.entries(parameters).filter(
        ([, value]) => value !== undefined && value !== null && value !== '',
    );
    return '/' + view + (given.length ? '?' + new URLSearchParams(given) : '');
}

export const jobLink = (id, text = id.slice(0, 8) + '…' + id.slice(-6)) =>
    h('a', { href: `#/jobs/${encodeURIComponent(id)}`, title: id, class: 'id' }, text);
export const queueLink = name => link(`/queues/${encodeURIComponent(name)}`, name);

// TABLES

// A column is {head, cell(row), class}; class "number" aligns to the right, "wide" is left out on small screens.
export function table(caption, columns, rows, key, empty = 'None.') {
    if (rows.length === 0) return h('p', { class: 'empty' }, empty);
    return h(
        'div',
        { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption },
        h(
            'table',
            {},
            h('caption', { class: 'hidden' }, caption),
            h(
                'thead',
                {},
                h(
                    'tr',
                    {},
                    columns.map(c => h('th', { scope: 'col', class: c.class }, c.head)),
                ),
            ),
            h(
                'tbody',
                {},
                rows.map(row =>
                    h(
                        'tr',
                        { key: key(row) },
                        columns.map(c => h('td', { class: c.class }, c.cell(row))),
                    ),
                ),
            ),
        ),
    );
}

// Term and description; what is absent is left out.
export function facts(...pairs) {
    return h(
        'dl',
        { class: 'facts' },
        pairs
            .filter(([, value]) => value !== undefined && value !== null && value !== '')
            .map(([term, value]) => h('div', {}, h('dt', {}, term), h('dd', {}, value))),
    );
}

export function panel(title, ...content) {
    return h('section', { class: 'panel', key: 'panel ' + title }, h('h2', {}, title), content);
}

// Settings by name, in columns where there is room.
export function settings(values) {
    return h(
        'dl',
        { class: 'settings' },
        Object.keys(values)
            .sort()
            .map(name =>
                h(
                    'div',
                    {},
                    h('dt', {}, name),
                    h('dd', {}, typeof values[name] === 'string' ? values[name] : JSON.stringify(values[name])),
                ),
            ),
    );
}

export const code = text => h('pre', { tabindex: 0 }, text);

// ACTIONS

// A button for what this role may do; nothing for what it may not.
export function action(duty, text, perform, options = {}) {
    if (!may(duty)) return null;
    return h(
        'button',
        {
            type: 'button',
            class: options.class,
            disabled: options.disabled,
            key: options.key ?? 'button ' + text,
            'aria-label': options.label,
            onclick: async event => {
                const button = event.currentTarget;
                if (button.ariaBusy === 'true') return;
                button.ariaBusy = 'true'; /* not disabled: that would lose the focus */
                try {
                    await perform();
                } catch (problem) {
                    complain(problem);
                }
                button.ariaBusy = null;
            },
        },
        text,
    );
}

export const actions = (...buttons) => h('div', { class: 'actions' }, buttons);

// NOTICES

let notices;
export function noticesElement() {
    return (notices = h('div', { class: 'notices', role: 'status', 'aria-live': 'polite' }));
}

export function say(text, kind = 'done', hint) {
    const notice = h(
        'div',
        { class: `notice ${kind}` },
        h('p', {}, text),
        hint && h('p', { class: 'hint' }, hint),
        h('button', { type: 'button', class: 'close', 'aria-label': 'Dismiss', onclick: () => notice.remove() }, '×'),
    );
    notices.append(notice);
    while (notices.children.length > 4) notices.firstChild.remove();
    setTimeout(() => notice.remove(), kind === 'failed' ? 15000 : 4000);
}

export function complain(problem) {
    if (problem.name === 'AbortError' || problem.status === 401) return;
    const id = problem.requestId ? ` (request ${problem.requestId})` : '';
    say(problem.message, 'failed', (problem.hint ?? '') + (problem.status >= 500 ? id : ''));
}

// DIALOGS

// Opens a dialog with fields; resolves with their values, or with null. A field is {name, label, type, value, options,
// hint, required, pattern}; type is text, number, checkbox, select, json. `confirm` is the word on the button; `check`
// may throw.
export function ask({ title, text, fields = [], confirm = 'Save', danger = false, check = values => values }) {
    return new Promise(resolve => {
        const trouble = h('p', { class: 'trouble', role: 'alert' });
        const inputs = fields.map(field => [field, input(field)]);
        let answer = null;
        const submit = async event => {
            event.preventDefault();
            try {
                const values = Object.fromEntries(
                    inputs.map(([field, element]) => [field.name, valueOf(field, element)]),
                );
                answer = await check(values);
                dialog.close();
            } catch (problem) {
                trouble.textContent = problem.message + (problem.hint ? ' ' + problem.hint : '');
            }
        };
        const dialog = h(
            'dialog',
            { 'aria-labelledby': 'dialog-title' },
            h(
                'form',
                { onsubmit: submit },
                h('h2', { id: 'dialog-title' }, title),
                text && h('p', {}, text),
                inputs.map(([field, element]) =>
                    h(
                        'label',
                        { class: field.type === 'checkbox' ? 'check' : '' },
                        field.type === 'checkbox'
                            ? [element, h('span', {}, field.label)]
                            : [h('span', {}, field.label), element],
                        field.hint && h('small', {}, field.hint),
                    ),
                ),
                trouble,
                h(
                    'div',
                    { class: 'actions' },
                    h('button', { type: 'button', onclick: () => dialog.close() }, 'Cancel'),
                    h('button', { type: 'submit', class: danger ? 'danger' : 'primary' }, confirm),
                ),
            ),
        );
        const before = document.activeElement;
        dialog.addEventListener('close', () => {
            dialog.remove();
            if (before?.isConnected) before.focus();
            resolve(answer);
        });
        document.body.append(dialog);
        dialog.showModal();
        (inputs[0]?.[1] ?? dialog.querySelector('button')).focus();
    });
}

export const sure = (title, text, confirm, danger = true) => ask({ title, text, confirm, danger, check: () => true });

export function input(field) {
    const common = { name: field.name, required: field.required, id: field.id, 'aria-label': field.ariaLabel };
    if (field.type === 'select')
        return h(
            'select',
            common,
            field.options.map(option => {
                const [value, text] = Array.isArray(option) ? option : [option, option];
                return h('option', { value, selected: value === (field.value ?? '') }, text);
            }),
        );
    if (field.type === 'json' || field.type === 'area')
        return h('textarea', { ...common, rows: field.rows ?? 10, spellcheck: 'false', value: field.value ?? '' });
    if (field.type === 'checkbox') return h('input', { ...common, type: 'checkbox', checked: !!field.value });
    return h('input', {
        ...common,
        type: field.type ?? 'text',
        value: field.value ?? '',
        pattern: field.pattern,
        placeholder: field.placeholder,
        list: field.list,
        autocomplete: field.autocomplete ?? 'off',
        autocapitalize: 'off',
        spellcheck: 'false',
        min: field.min,
        max: field.max,
        step: field.step,
    });
}

function valueOf(field, element) {
    if (field.type === 'checkbox') return element.checked;
    const text = element.value.trim();
    if (field.type === 'number') return text === '' ? null : Number(text);
    if (field.type === 'json') {
        try {
            return text === '' ? null : JSON.parse(text);
        } catch (error) {
            throw new Error(`${field.label} is not JSON: ${error.message}`);
        }
    }
    return text;
}

// FILTERS: a form whose values are the view's part of the address.
export function filters(view, values, fields) {
    const apply = event => {
        event.preventDefault();
        const form = event.currentTarget;
        location.hash = to(
            view,
            Object.fromEntries(fields.map(field => [field.name, form.elements[field.name].value.trim()])),
        );
    };
    return h(
        'form',
        {
            class: 'filters',
            role: 'search',
            key: 'filters ' + JSON.stringify(values),
            onsubmit: apply,
            onchange: event => event.target.nodeName === 'SELECT' && event.currentTarget.requestSubmit(),
        },
        fields.map(field => h('label', {}, h('span', {}, field.label), input({ ...field, value: values[field.name] }))),
        h('button', { type: 'submit' }, 'Filter'),
        Object.values(values).some(Boolean) && link('/' + view, 'Clear'),
    );
}

// Pages by cursor: back leads to the first.
export function pager(view, values, page) {
    const onLater = !!values.cursor;
    if (!onLater && !page.next_cursor) return null;
    return h(
        'nav',
        { class: 'pager', 'aria-label': 'Pages' },
        onLater ? link(to(view, { ...values, cursor: '' }), 'First page') : null,
        page.next_cursor
            ? h('a', { href: '#' + to(view, { ...values, cursor: page.next_cursor }), rel: 'next' }, 'Next page')
            : null,
    );
}

// SELECTION: rows that are ticked, by id.
export class Selection {
    ids = new Set();
    bar = h('div', { class: 'selection', hidden: true });
    constructor(buttons) {
        this.buttons = buttons;
        this.bar.update = () => {};
        this.bar.key = 'selection';
    }
    column(shown) {
        this.ids = new Set([...this.ids].filter(id => shown.includes(id)));
        this.changed();
        return {
            class: 'tick',
            head: h('input', {
                type: 'checkbox',
                'aria-label': 'Select all',
                checked: shown.length > 0 && this.ids.size === shown.length,
                onchange: event => {
                    this.ids = new Set(event.target.checked ? shown : []);
                    for (const box of event.target.closest('table').querySelectorAll('tbody .tick input'))
                        box.checked = event.target.checked;
                    this.changed();
                },
            }),
            cell: row =>
                h('input', {
                    type: 'checkbox',
                    'aria-label': `Select ${row.id}`,
                    checked: this.ids.has(row.id),
                    onchange: event => {
                        this.ids[event.target.checked ? 'add' : 'delete'](row.id);
                        this.changed();
                    },
                }),
        };
    }
    changed() {
        this.bar.hidden = this.ids.size === 0;
        show(this.bar, [h('span', {}, `${this.ids.size} selected`), this.buttons([...this.ids])]);
    }
}

export function bar(share) {
    const percent = Math.round(Math.min(1, Math.max(0, share)) * 100);
    return h(
        'span',
        { class: 'progress', role: 'img', 'aria-label': `${percent} percent` },
        svg('svg', { viewBox: '0 0 100 6', preserveAspectRatio: 'none' }, svg('rect', { width: percent, height: 6 })),
        ` ${percent} %`,
    );
}
