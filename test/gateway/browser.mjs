// test/gateway/browser.mjs URL PICTURES: opens every page of the admin UI at URL in Chromium, presses every button, and keeps a
// picture of each page in the folder PICTURES. Speaks the DevTools protocol over a pipe. Prints TAP.
import { spawn } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';

const [url, pictures] = process.argv.slice(2);
mkdirSync(pictures, { recursive: true });
const chromium = spawn(process.env.CHROMIUM ?? 'chromium', ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',
    '--window-size=1280,900', '--remote-debugging-pipe'], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
process.on('exit', () => chromium.kill('SIGKILL'));
const [, , , to, from] = chromium.stdio;
const waiting = new Map(), problems = [];
let last = 0, session, text = '', open = 0;
function send(method, params = {}) {
    const id = ++last;
    to.write(JSON.stringify({ id, method, params, ...(session && { sessionId: session }) }) + '\0');
    return new Promise((resolve, reject) => waiting.set(id, { resolve, reject, method }));
}
from.on('data', piece => {
    text += piece;
    for (let end; (end = text.indexOf('\0')) >= 0; text = text.slice(end + 1)) {
        const { id, method, params, result, error } = JSON.parse(text.slice(0, end));
        if (id) {
            const { resolve, reject, method } = waiting.get(id);
            waiting.delete(id);
            error ? reject(new Error(`${method}: ${error.message}`)) : resolve(result);
        } else if (method === 'Runtime.exceptionThrown')
            problems.push('exception: ' + (params.exceptionDetails.exception?.description ?? params.exceptionDetails.text).split('\n')[0]);
        else if (method === 'Network.requestWillBeSent')
            open++;
        else if (method === 'Network.loadingFinished' || method === 'Network.loadingFailed')
            open--;
        else if (method === 'Network.responseReceived' && params.response.status >= 400)
            problems.push(`${params.response.status} ${new URL(params.response.url).pathname}`);
        else if (method === 'Page.javascriptDialogOpening')
            send('Page.handleJavaScriptDialog', { accept: true });
    }
});
const pause = ms => new Promise(resolve => setTimeout(resolve, ms));
async function evaluate(expression) {
    return (await send('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true })).result.value;
}
// Until nothing has been on its way for a while.
async function settled() {
    for (let quiet = 0, i = 0; quiet < 4 && i < 200; i++) {
        await pause(50);
        quiet = open > 0 ? 0 : quiet + 1;
    }
}
async function show(path) {
    open = 0;
    await send('Page.navigate', { url: url + path });
    for (let i = 0; i < 200 && !await evaluate("document.readyState === 'complete' && document.querySelector('#root')?.innerText.length > 0"); i++)
        await pause(50);
    await settled();
}
let n = 0;
const ok = (good, name, said) => console.log(`${good ? 'ok' : 'not ok'} ${++n} - ${name}${good ? '' : '\n# ' + said}`);
const crashed = () => evaluate("document.body.innerText.includes('Something went wrong')");

session = (await send('Target.attachToTarget', { targetId: (await send('Target.createTarget', { url: 'about:blank' })).targetId, flatten: true })).sessionId;
await send('Browser.grantPermissions', { permissions: ['clipboardReadWrite', 'clipboardSanitizedWrite'] });
for (const domain of ['Page', 'Runtime', 'Network'])
    await send(domain + '.enable');
await show('');
const pages = await evaluate("[...new Set([...document.querySelectorAll('nav a, aside a')].map(a => a.pathname))]");
ok(pages?.length > 5, 'the side bar names pages', pages);
// What a page of the list opens: the rows of its tables.
const buttons = "[...document.querySelectorAll('main button, main tbody tr')].filter(b => !b.disabled && b.offsetParent)";
for (const page of pages ?? []) {
    const path = page.replace(/^\/ojs\/admin\/?/, '');
    problems.length = 0;
    await show(path);
    writeFileSync(`${pictures}/${path || 'dashboard'}.png`, Buffer.from((await send('Page.captureScreenshot')).data, 'base64'));
    ok(!await crashed() && problems.length === 0, `/${path} opens`, problems.join('; '));
    const names = await evaluate(`${buttons}.map(b => b.innerText.trim().split('\\n')[0])`);
    const bad = [];
    for (let i = 0; i < Math.min(names.length, 25); i++) {
        problems.length = 0;
        await show(path);
        await evaluate(`${buttons}[${i}]?.click()`);
        await settled();
        // A dialog is filled in, and confirmed.
        const dialog = "[...document.querySelectorAll('.fixed')].at(-1)";
        if (await evaluate(`!!${dialog}`)) {
            writeFileSync(`${pictures}/${path || 'dashboard'}-${i}.png`, Buffer.from((await send('Page.captureScreenshot')).data, 'base64'));
            await evaluate(`[...${dialog}.querySelectorAll('button')].at(-1)?.click()`);
            await settled();
        }
        if (await crashed() || problems.length > 0)
            bad.push(`${names[i]}: ${await crashed() ? 'crash ' : ''}${problems.join('; ')}`);
    }
    ok(bad.length === 0, `/${path}: ${names.length} buttons and rows`, bad.join('\n# '));
}
console.log(`1..${n}`);
process.exit(0);
