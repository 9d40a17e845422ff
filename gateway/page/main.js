// main.js: the frame around the views: navigation, refreshing, signing in, keys.
import { h, show, clock } from './dom.js';
import { adminUi, may, readAccess, role, token } from './api.js';
import { complain, noticesElement } from './widgets.js';
import * as dashboard from './dashboard.js';
import * as queues from './queues.js';
import * as jobs from './jobs.js';
import * as job from './job.js';
import * as workers from './workers.js';
import * as cron from './cron.js';
import * as limits from './limits.js';
import * as workflows from './workflows.js';
import * as events from './events.js';
import * as system from './system.js';

// Name in the address, name in the navigation, the key after "g", the list, one of it.
const views = [
    ['dashboard', 'Dashboard', 'd', dashboard],
    ['jobs', 'Jobs', 'j', jobs, job],
    ['queues', 'Queues', 'q', queues, queues],
    ['workflows', 'Workflows', 'f', workflows, workflows],
    ['workers', 'Workers', 'w', workers],
    ['dead-letters', 'Dead letters', 'l', jobs.deadLetters],
    ['cron', 'Cron', 'c', cron],
    ['rate-limits', 'Rate limits', 'r', limits],
    ['events', 'Events', 'e', events],
    ['system', 'System', 's', system],
];

const main = h('main', { id: 'main', tabindex: -1 });
const heading = h('h1', {});
const freshness = h('button', { type: 'button', class: 'fresh', title: 'Refresh now (r)', onclick: () => load() });
const notices = noticesElement();
let shown = null; // the address that is on the screen
let running = null; // what fetches for it
let timer = null;

function address() {
    const [path, search] = location.hash.replace(/^#\/?/, '').split('?');
    const [name, ...rest] = path.split('/');
    const found = views.find(view => view[0] === (name || 'dashboard'));
    const id = rest.length > 0 ? decode(rest.join('/')) : undefined;
    return {
        view: found && (id === undefined ? found[3] : found[4]),
        name: found?.[0],
        id,
        values: Object.fromEntries(new URLSearchParams(search)),
    };
}

function decode(text) {
    try {
        return decodeURIComponent(text);
    } catch {
        return text;
    }
}

async function load() {
    clearTimeout(timer);
    running?.abort();
    const own = (running = new AbortController());
    const { view, name, id, values } = address();
    const fresh = location.hash !== shown;
    if (!view) {
        heading.textContent = 'There is no such page';
        shown = location.hash;
        return show(main, [h('p', {}, h('a', { href: '#/' }, 'To the dashboard'))]);
    }
    if (fresh) {
        heading.textContent = view.title({ id, values });
        document.title = `${heading.textContent} · ojs`;
        for (const link of document.querySelectorAll('nav.views a'))
            link.dataset.view === name
                ? link.setAttribute('aria-current', 'page')
                : link.removeAttribute('aria-current');
        main.setAttribute('aria-busy', 'true');
    }
    try {
        const content = await view.view({ id, values, signal: own.signal, refresh: load });
        if (own.signal.aborted) return;
        if (fresh || view.pause?.(values) === 0) main.replaceChildren();
        if (fresh) window.scrollTo(0, 0);
        show(main, content);
        mark(clock(new Date()));
        shown = location.hash;
    } catch (problem) {
        if (own.signal.aborted || problem.name === 'AbortError') return;
        if (problem.status === 401) return signIn('The token does not count, or no longer.');
        if (!('status' in problem)) console.error(problem);
        if (fresh) {
            shown = location.hash;
            show(main, [
                h('p', { class: 'banner', role: 'alert' }, problem.message),
                problem.hint && h('p', { class: 'hint' }, problem.hint),
            ]);
        } else complain(problem);
        mark('not fresh', true);
    } finally {
        main.removeAttribute('aria-busy');
    }
    const pause = view.pause ? view.pause(values) : 5000;
    if (running === own && pause > 0) timer = setTimeout(later, pause);
}

function mark(text, stale = false) {
    freshness.textContent = text;
    freshness.className = stale ? 'fresh stale' : 'fresh';
}

// Nothing is asked for while nobody looks, or while a dialog is open.
function later() {
    if (document.hidden || document.querySelector('dialog[open]')) timer = setTimeout(later, 1000);
    else load();
}

// SIGNING IN

async function enter() {
    try {
        await readAccess();
    } catch (problem) {
        if (problem.status === 401) return signIn(token.get() ? 'The token does not count.' : '');
        return signIn(problem.message + ' ' + (problem.hint ?? ''));
    }
    frame();
    if (!may('observe')) {
        heading.textContent = 'Nothing to see';
        return show(main, [
            h(
                'p',
                {},
                `The role ${role()} may not look at queues and jobs. Use a token of an observer or an administrator.`,
            ),
        ]);
    }
    load();
}

function signIn(trouble) {
    running?.abort();
    clearTimeout(timer);
    shown = null;
    token.set(null);
    const field = h('input', { type: 'password', name: 'token', required: true, autocomplete: 'off', id: 'token' });
    document.body.replaceChildren(
        h(
            'form',
            {
                class: 'sign-in',
                onsubmit: event => {
                    event.preventDefault();
                    token.set(field.value.trim());
                    enter();
                },
            },
            h('h1', {}, 'ojs'),
            h('label', { for: 'token' }, 'Token'),
            field,
            h('p', { class: 'trouble', role: 'alert' }, trouble),
            h('button', { type: 'submit', class: 'primary' }, 'Sign in'),
            h(
                'p',
                { class: 'hint' },
                'It is kept in this tab until the tab is closed, and sent to this gateway alone.',
            ),
        ),
    );
    field.focus();
}

// THE FRAME

function frame() {
    const menu = h(
        'button',
        {
            type: 'button',
            class: 'menu',
            'aria-expanded': 'false',
            'aria-controls': 'views',
            onclick: () => {
                menu.setAttribute('aria-expanded', document.body.classList.toggle('open'));
            },
        },
        'Menu',
    );
    document.body.replaceChildren(
        h(
            'a',
            {
                class: 'skip',
                href: '#main',
                onclick: event => {
                    event.preventDefault();
                    main.focus();
                },
            },
            'Skip to the content',
        ),
        h('header', {}, menu, heading, freshness),
        h(
            'nav',
            { class: 'views', id: 'views', 'aria-label': 'Views' },
            h('p', { class: 'brand' }, 'ojs'),
            h(
                'ul',
                {},
                views.map(([name, text, key]) =>
                    h(
                        'li',
                        {},
                        h(
                            'a',
                            {
                                href: `#/${name === 'dashboard' ? '' : name}`,
                                'data-view': name,
                                'aria-keyshortcuts': `g ${key}`,
                            },
                            text,
                        ),
                    ),
                ),
            ),
            h(
                'div',
                { class: 'foot' },
                h('p', {}, 'Role ', h('b', {}, role()), !may('admin') && ', may look'),
                adminUi() && h('p', {}, h('a', { href: '../ojs/admin/' }, 'Official admin UI')),
                h('button', { type: 'button', onclick: theme }, 'Light or dark'),
                token.get() && h('button', { type: 'button', onclick: () => signIn('') }, 'Sign out'),
                h('button', { type: 'button', onclick: keys }, 'Keys'),
            ),
        ),
        main,
        notices,
    );
}

const themes = ['', 'light', 'dark'];
function theme() {
    const dark = matchMedia('(prefers-color-scheme: dark)').matches;
    const now = document.documentElement.dataset.theme || (dark ? 'dark' : 'light');
    setTheme(now === 'dark' ? 'light' : 'dark');
}

function setTheme(name) {
    document.documentElement.dataset.theme = name;
    localStorage.setItem('ojs.theme', name);
}

function keys() {
    const rows = [
        ...views.map(([, text, key]) => [`g ${key}`, text]),
        ['r', 'Refresh'],
        ['/', 'First filter'],
        ['?', 'These keys'],
    ];
    const before = document.activeElement;
    const dialog = h(
        'dialog',
        { 'aria-labelledby': 'keys' },
        h('h2', { id: 'keys' }, 'Keys'),
        h(
            'dl',
            { class: 'keys' },
            rows.map(([key, text]) => [h('dt', {}, h('kbd', {}, key)), h('dd', {}, text)]),
        ),
        h('div', { class: 'actions' }, h('button', { type: 'button', onclick: () => dialog.close() }, 'Close')),
    );
    dialog.addEventListener('close', () => {
        dialog.remove();
        before?.focus();
    });
    document.body.append(dialog);
    dialog.showModal();
}

let lastKey = '';
addEventListener('keydown', event => {
    if (
        event.ctrlKey ||
        event.metaKey ||
        event.altKey ||
        /INPUT|TEXTAREA|SELECT/.test(event.target.nodeName) ||
        document.querySelector('dialog[open], .sign-in')
    )
        return;
    const chosen = lastKey === 'g' && views.find(([, , key]) => key === event.key);
    lastKey = event.key;
    if (chosen) location.hash = '#/' + (chosen[0] === 'dashboard' ? '' : chosen[0]);
    else if (event.key === 'r') load();
    else if (event.key === '?') keys();
    else if (event.key === '/') {
        main.querySelector('.filters input, .filters select')?.focus();
        event.preventDefault();
    }
});

addEventListener('hashchange', () => {
    document.body.classList.remove('open');
    document.querySelector('.menu')?.setAttribute('aria-expanded', 'false');
    if (document.querySelector('nav.views') && may('observe')) load();
});
document.addEventListener('visibilitychange', () => document.hidden || (running && later()));

const saved = localStorage.getItem('ojs.theme');
if (themes.includes(saved)) document.documentElement.dataset.theme = saved;
enter();
