// dom.js: makes elements, and brings those on the screen up to date. Text only ever becomes text nodes and attributes.

const SVG = 'http://www.w3.org/2000/svg';
const handlers = ['onclick', 'onchange', 'oninput', 'onsubmit', 'onkeydown'];

function fill(element, properties, children) {
    for (const [name, value] of Object.entries(properties ?? {}))
        if (value === undefined || value === null || value === false) continue;
        else if (name === 'key' || name === 'checked' || name === 'value' || handlers.includes(name))
            element[name] = value;
        else element.setAttribute(name, value === true ? '' : value);
    append(element, children);
    return element;
}

// Characters that turn the direction of text are shown as escapes: what a job says must not rearrange what stands
// beside it.
const visible = text => text.replace(/[\u202a-\u202e\u2066-\u2069]/g, c => '\\u' + c.charCodeAt(0).toString(16));

function append(element, children) {
    for (const child of children)
        if (Array.isArray(child)) append(element, child);
        else if (child !== undefined && child !== null && child !== false)
            element.append(child instanceof Node ? child : visible(String(child)));
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

// Gives `old` the children `fresh`. What is the same stays, and with it the focus and what somebody has typed. Elements
// with the same key are the same; an element with update() is given the state of its successor.
export function show(old, fresh) {
    const nodes = document.createElement('div');
    append(nodes, [fresh]);
    patchChildren(old, nodes);
}

function patchChildren(old, fresh) {
    const wanted = new Set([...fresh.childNodes].map(child => child.key));
    const known = new Map(
        [...old.childNodes].filter(child => child.key !== undefined).map(child => [child.key, child]),
    );
    let at = old.firstChild;
    for (const child of [...fresh.childNodes]) {
        while (at && at.key !== undefined && !wanted.has(at.key)) {
            const gone = at;
            at = at.nextSibling;
            gone.remove();
        }
        const same = child.key !== undefined ? known.get(child.key) : at?.key === undefined ? at : null;
        if (!same) {
            old.insertBefore(child, at);
            continue;
        }
        if (same !== at) old.insertBefore(same, at);
        else at = at.nextSibling;
        patch(same, child);
    }
    while (at) {
        const gone = at;
        at = at.nextSibling;
        gone.remove();
    }
}

function patch(old, fresh) {
    if (old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
    if (old.nodeType !== Node.ELEMENT_NODE) {
        if (old.data !== fresh.data) old.data = fresh.data;
        return;
    }
    if (old.update && fresh.update) return old.update(fresh.state);
    for (const { name } of [...old.attributes])
        if (!fresh.hasAttribute(name) && name !== 'open') old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const name of handlers) if (old[name] !== fresh[name]) old[name] = fresh[name];
    if (old.type === 'checkbox') old.checked = fresh.checked;
    patchChildren(old, fresh);
}

// NUMBERS AND TIMES

const whole = new Intl.NumberFormat('en');
export const number = n => (n === undefined || n === null ? '' : whole.format(n));

export function milliseconds(ms) {
    if (ms === undefined || ms === null) return '';
    if (ms < 1) return `${ms.toPrecision(2)} ms`;
    if (ms < 1000) return `${Math.round(ms)} ms`;
    if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
    return span(ms / 1000);
}

// Seconds in one or two units.
export function span(seconds) {
    const parts = [
        ['d', 86400],
        ['h', 3600],
        ['min', 60],
        ['s', 1],
    ];
    let rest = Math.max(0, Math.round(seconds));
    const found = [];
    for (const [unit, size] of parts) {
        if ((rest >= size && found.length < 2) || (unit === 's' && found.length === 0)) {
            found.push(`${Math.floor(rest / size)} ${unit}`);
            rest %= size;
        } else if (found.length > 0) break;
    }
    return found.join(' ');
}

const pad = n => String(n).padStart(2, '0');

export function clock(date, seconds = true) {
    return `${pad(date.getHours())}:${pad(date.getMinutes())}${seconds ? ':' + pad(date.getSeconds()) : ''}`;
}

export function day(date) {
    return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
}

// A moment, as how long ago it was or how soon it comes; the whole of it when pointed at.
export function moment(text) {
    if (!text) return '';
    const date = new Date(text),
        away = (date - Date.now()) / 1000;
    const words = Math.abs(away) < 1 ? 'now' : away < 0 ? `${span(-away)} ago` : `in ${span(away)}`;
    return h('time', { datetime: text, title: `${day(date)} ${clock(date)} (${text})` }, words);
}

export function exact(text) {
    const date = new Date(text);
    return h(
        'time',
        { datetime: text, title: text },
        `${day(date)} ${clock(date)}.${String(date.getMilliseconds()).padStart(3, '0')}`,
    );
}

export const json = value => JSON.stringify(value, null, 2);
