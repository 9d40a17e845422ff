// test/gateway/page.mjs PLAN: what test/gateway/page asks of the page, in Chromium. Prints TAP.
import { evaluate, finish, ok, picture as draw, press, problems, send, settled, until, visit } from './chromium.mjs';

const { url, guarded, observing, pictures, jobs, workflow } = JSON.parse(process.argv[2]);
const views = ['', 'jobs', 'jobs?state=available&queue=mail', ...Object.values(jobs).map(id => `jobs/${id}`), 'queues',
    'queues/mail', 'workflows',
    `workflows/${workflow}`, 'workers', 'dead-letters', 'cron', 'rate-limits', 'events', 'system'];
const name = view => view.replace(/\?.*/, '-filtered').replace(/^jobs\/(.*)/,
    (_, id) => 'job-' + Object.entries(jobs).find(([, one]) => one === id)[0])
    .replace(/^workflows\/.*/, 'workflow').replace('/', '-') || 'dashboard';
const ready = `document.querySelector('main')?.children.length > 0
    && !document.querySelector('main').hasAttribute('aria-busy')`;

// Shows a view anew, also the one that is on the screen.
async function open(view) {
    const there = await evaluate(`(async () => {
        const go = hash => new Promise(gone => {
            addEventListener('hashchange', () => setTimeout(gone), { once: true });
            location.hash = hash;
        });
        const hash = '#/' + ${JSON.stringify(view)};
        if (location.hash === hash || !location.hash && hash === '#/') await go('#/none');
        document.querySelector('main')?.replaceChildren();
        await go(hash);
        for (const end = Date.now() + 10_000; Date.now() < end; await new Promise(later => setTimeout(later, 5)))
            if (${ready}) return true;
    })()`);
    if (!there)
        problems.push(`never: ${view} is there`);
    await settled(1);
}
const picture = async file => pictures && await draw(`${pictures}/${file}.png`);
async function screen(width, height, scheme) {
    await send('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile: width < 600 });
    await send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: scheme }] });
}
async function start(address) {
    await visit(address);
    await until(`location.pathname === '/page/'
        && (document.querySelector('nav.views a') || document.querySelector('#token')) !== null`, 'the page starts');
}
const label = "(b.getAttribute('aria-label') ?? b.textContent)";
// What text must not become, and no view has.
const foreign = `document.querySelectorAll('img, iframe, object, embed, base, main script, [onerror],'
    + ' a[href^="javascript:"]').length`;

// EVERY VIEW, ON EVERY SCREEN

const few = ['', 'jobs', 'queues/mail', `jobs/${jobs.discarded}`, `workflows/${workflow}`, 'cron'];
const unnamed = `[...document.querySelectorAll('button, a, input, select, textarea')]
    .filter(e => e.checkVisibility() && !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length))
    .map(e => e.outerHTML)`;
const outOfSight = `[...document.querySelectorAll('main button')].filter(b => b.checkVisibility())
    .filter(b => (r => r.left < 0 || r.right > innerWidth)(b.getBoundingClientRect()))
    .map(b => ${label})`;
const look = `[document.scrollingElement.scrollWidth - innerWidth, ${foreign}, 
    !!document.querySelector('main .banner'), ${unnamed}, ${outOfSight}]`;
const screens = [['desk', 1280, 850, 'light'], ['dark', 1280, 850, 'dark'], ['phone', 390, 844, 'light']];
await screen(1280, 850, 'light');
await start(url);
// No trouble, nothing foreign, no wider than the screen; whatever takes the focus has a name; no button must be
// scrolled to.
for (const view of views)
    for (const [kind, width, height, scheme] of screens.filter(([kind]) => kind !== 'dark' || few.includes(view))) {
        await screen(width, height, scheme);
        if (kind === 'desk') {
            problems.length = 0;
            await open(view);
        } else
            await settled(); /* the same page, drawn anew */
        await picture(`${kind}-${name(view)}`);
        const [overflow, elements, banner, nameless, hidden] = await evaluate(look);
        ok(problems.length === 0 && elements === 0 && overflow <= 0 && !banner && nameless.length === 0
            && hidden.length === 0, `${kind}: ${name(view)}`,
            `${problems.join('\n')} foreign elements ${elements}, wider than the screen by ${overflow}, `
            + `without a name ${nameless}, out of sight ${hidden}`);
    }
await screen(1280, 850, 'light');

await open('queues/..');
ok(await evaluate("document.querySelector('main .banner')?.textContent.includes('dots alone')"),
    'a name of dots leads to no other address');

// BY KEYBOARD

problems.length = 0;
await open('');
await evaluate('document.activeElement.blur()');
await press('g');
await press('q');
await until("document.querySelector('main button')?.textContent === 'New queue'", 'keys lead to queues');
await settled();
await evaluate("document.querySelector('.skip').focus()");
await press('Enter');
await press('Tab');
ok(await evaluate(`document.activeElement.textContent === 'New queue'
    && getComputedStyle(document.activeElement).outlineStyle !== 'none'`),
    'the first link skips to the content, and the focus is seen',
    await evaluate('document.activeElement.outerHTML'));
await press('Enter');
await until("!!document.querySelector('dialog[open]') && document.activeElement.name === 'name'",
    'Enter opens a dialog, which has the focus');
await press('Escape');
await until("!document.querySelector('dialog') && document.activeElement.textContent === 'New queue'",
    'Escape closes it, and the focus comes back');
await press('Tab');
await press('Tab');
const before = await evaluate('document.activeElement.outerHTML');
await press('r');
await settled();
ok(await evaluate('document.activeElement.outerHTML') === before && before.startsWith('<a'),
    'the focus stays where it is when the view is brought up to date', before);
const reached = [];
await open('queues/mail');
await evaluate("document.querySelector('.skip').focus()");
for (let i = 0; i < 40; i++) {
    reached.push(await evaluate(`(b => ${label})(document.activeElement)`));
    await press('Tab');
}
ok(['Jobs', 'System', 'Pause mail', 'Configure', 'Purge', 'Delete'].every(text => reached.includes(text))
    || ['Resume mail', 'Configure', 'Purge', 'Delete'].every(text => reached.includes(text)),
    'Tab reaches the navigation and every button', reached.join(', '));
// WHO MAY ONLY LOOK

const acting = `[...document.querySelectorAll('main button')]
    .filter(b => b.type === 'button' && b.textContent !== 'Hold').length`;
async function signIn(token) {
    await until("document.querySelector('#token') !== null", 'a token is asked for');
    await evaluate(`document.querySelector('#token').value = ${JSON.stringify(token)};
        document.querySelector('.sign-in button').click()`);
    await settled();
}
problems.length = 0;
await start(guarded);
await signIn('no-such-token-here');
ok(await evaluate("document.querySelector('.trouble').textContent.includes('does not count')")
    && problems.splice(0).every(one => one.startsWith('401')), 'a wrong token is refused');
await signIn('an-observers-token');
await until("document.querySelector('nav.views a') !== null", 'an observer comes in');
for (const [who, prepare] of [['an observer', () => {}], ['a gateway that only shows', () => start(observing)]]) {
    await prepare();
    problems.length = 0;
    let buttons = 0;
    for (const view of views) {
        await open(view);
        buttons += await evaluate(acting);
    }
    ok(buttons === 0 && problems.length === 0, `${who}: all views, and no button that would fail`,
        `${buttons} buttons ${problems.join('\n')}`);
}
await start(guarded);
await until("document.querySelector('nav.views a') !== null", 'the token is kept in this tab');
ok(await evaluate("localStorage.getItem('ojs.token') === null && !document.cookie && !location.href.includes('token')"),
    'and nowhere else');
await evaluate("[...document.querySelectorAll('.foot button')].find(b => b.textContent === 'Sign out').click()");
ok(await evaluate("sessionStorage.getItem('ojs.token') === null && document.querySelector('#token') !== null"),
    'until one signs out');
problems.length = 0;
await signIn('a-producers-token');
ok(await evaluate("document.querySelector('main').textContent.includes('may not look')") && problems.length === 0,
    'a producer is told that there is nothing to see', problems.join('\n'));

// WHAT THE BROWSER REFUSES

await start(url);
problems.length = 0;
const injected = await evaluate(`(() => { const caught = [];
    for (const attempt of [() => document.body.innerHTML = '<b>x</b>',
        () => document.body.insertAdjacentHTML('beforeend', '<img src=x>')])
        try { attempt(); caught.push('ran'); } catch (error) { caught.push(error.name); }
    return caught.join(); })()`);
ok(!injected.includes('ran'), 'text cannot become markup, whatever the page does', injected);
const framed = await evaluate(`fetch('.')
    .then(r => r.headers.get('content-security-policy') + r.headers.get('x-frame-options'))`);
ok(/frame-ancestors 'none'/.test(framed) && /DENY/.test(framed) && !/unsafe/.test(framed), 'no other page may frame it',
    framed);
// EVERY BUTTON

const shownButtons = "[...document.querySelectorAll('main button')].filter(b => !b.disabled && b.checkVisibility())";
const pressed = new Set();

// Fills in what a dialog asks for, and confirms it.
async function confirm() {
    await evaluate(`(() => {
        const dialog = document.querySelector('dialog[open]');
        const values = { name: 'made-by-hand', key: 'made-by-hand', concurrency: '5', reason: 'a test',
            minutes: '10', hours: '1', priority: '7' };
        for (const input of dialog.querySelectorAll('input'))
            if (input.type === 'checkbox') input.checked = input.name !== 'available';
            else if (!input.value && values[input.name]) input.value = values[input.name];
        const strategy = dialog.querySelector('select[name=strategy]');
        if (strategy) strategy.value = 'discard';
        const area = dialog.querySelector('textarea[name=config]');
        if (area) area.value = area.value.replace(/"lease_ms": \\d+/, '"lease_ms": 45000');
        dialog.querySelector('[type=submit]').click();
    })()`);
    await until("!document.querySelector('dialog[open]')",
        'the dialog closes: ' + await evaluate("document.querySelector('dialog .trouble')?.textContent"));
}
async function pressAll(view) {
    const bad = [];
    let count = 0;
    await open(view);
    const names = await evaluate(`${shownButtons}.map(b => ${label})`);
    // One row of a list stands for all; those that remove come last.
    const verb = text => text.replace(/ .*/, '');
    const last = ['Remove', 'Delete', 'Purge', 'Discard', 'Cancel', 'Terminate', 'terminate', 'Retry all',
        'Delete all'];
    names.sort((a, b) => last.indexOf(verb(a)) - last.indexOf(verb(b)));
    for (const text of names) {
        if (pressed.has(`${view} ${verb(text)}`) && names.length > 8)
            continue;
        pressed.add(`${view} ${verb(text)}`);
        problems.length = 0;
        await open(view);
        await evaluate("document.querySelectorAll('.notice').forEach(n => n.remove())");
        if (!await evaluate(`(() => {
            const b = ${shownButtons}.find(b => ${label} === ${JSON.stringify(text)});
            b?.click();
            return !!b })()`))
            continue;
        count++;
        await settled();
        if (await evaluate("!!document.querySelector('dialog[open]')"))
            await confirm();
        await settled();
        const said = await evaluate("document.querySelector('.notice.failed')?.textContent ?? ''");
        if (problems.length > 0 || said)
            bad.push(`${text}: ${said} ${problems.join('; ')}`);
        if (await evaluate("!!document.querySelector('dialog[open]')"))
            await evaluate("document.querySelector('dialog[open]').close()");
    }
    ok(bad.length === 0 && (count > 0 || names.length === 0), `every button works: ${name(view)} (${count})`,
        bad.join('\n'));
}
for (const view of ['queues', 'queues/reports', 'workers', 'cron', 'rate-limits', 'events', `jobs/${jobs.available}`,
    `jobs/${jobs.scheduled}`, `jobs/${jobs.retryable}`,
    `jobs/${jobs.discarded}`, `jobs/${jobs.active}`, `jobs/${jobs.completed}`, 'dead-letters', `workflows/${workflow}`,
        'system', 'system'])
    await pressAll(view);
await open('rate-limits');
ok(await evaluate(`${shownButtons}.some(b => ${label} === 'Take back made-by-hand')`),
    'a limit that was set by hand can be taken back');
await evaluate(`${shownButtons}.find(b => ${label} === 'Take back made-by-hand').click()`);
await confirm();
await until("!document.querySelector('main').textContent.includes('made-by-hand')", 'the limit has gone');

// Several jobs at once, and the pages by cursor.
problems.length = 0;
await open('jobs?queue=mail');
await evaluate("[...document.querySelectorAll('tbody .tick input')].slice(0, 3).forEach(box => box.click())");
await until("document.querySelector('.selection')?.textContent.startsWith('3 selected')");
await evaluate("[...document.querySelectorAll('.selection button')].find(b => b.textContent === 'Cancel').click()");
await until("document.querySelector('.notices')?.textContent.includes('of 3 jobs are cancelled')");
ok(problems.length === 0, 'jobs that are ticked are cancelled at once', problems.join('\n'));

// A range that is counted in the jobs, and a chart by keys.
problems.length = 0;
await open('dashboard?range=7d');
await open('dashboard?range=24h&queue=mail');
await evaluate("document.querySelector('.chart svg[role=img]').focus()");
await press('ArrowLeft');
ok(problems.length === 0 && await evaluate("document.querySelector('.chart .when').textContent !== 'latest'"),
    'other ranges; a chart is read by keys', problems.join('\n'));

// Events as they happen.
problems.length = 0;
await open('events');
await until("document.querySelector('.count .badge').textContent === 'live'", 'the stream is there');
await evaluate(`fetch('../ojs/v1/jobs', { method: 'POST',
    headers: { 'Content-Type': 'application/json' }, body: '{"type": "seen.live", "args": []}' })`);
await until("document.querySelector('tbody').textContent.includes('seen.live')", 'the event is shown');
await picture('desk-events');
ok(problems.length === 0, 'events are shown as they happen', problems.join('\n'));
finish();
