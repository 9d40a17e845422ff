// test/gateway/chromium.mjs: a Chromium of its own, by the DevTools protocol over a pipe, for tests in a browser.
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';

const chromium = spawn(process.env.CHROMIUM ?? 'chromium', ['--headless=new', '--no-sandbox', '--disable-gpu',
    '--disable-dev-shm-usage',
    '--window-size=1280,900', '--remote-debugging-pipe'], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
process.on('exit', () => chromium.kill('SIGKILL'));
const [, , , to, from] = chromium.stdio;
const waiting = new Map(), open = new Set();
let last = 0, session, text = '';

// What went wrong since somebody emptied it.
export const problems = [];

export function send(method, params = {}) {
    const id = ++last;
    to.write(JSON.stringify({ id, method, params, ...(session && { sessionId: session }) }) + '\0');
    return new Promise((resolve, reject) => waiting.set(id, { resolve, reject, method }));
}

const events = {
    'Runtime.exceptionThrown': ({ exceptionDetails: { exception, text } }) =>
        problems.push('exception: ' + (exception?.description ?? text).split('\n')[0]),
    'Runtime.consoleAPICalled': ({ type, args }) => type === 'error'
        && problems.push('console: ' + args.map(arg => arg.description ?? arg.value).join(' ').split('\n')[0]),
    'Log.entryAdded': ({ entry }) => entry.level === 'error' && entry.source !== 'network'
        && problems.push(`${entry.source}: ${entry.text}`),
    'Network.requestWillBeSent': ({ requestId, request }) => /\/(stream|work)\b/.test(request.url)
        || open.add(requestId),
    'Network.loadingFinished': ({ requestId }) => open.delete(requestId),
    'Network.loadingFailed': ({ requestId }) => open.delete(requestId),
    'Network.responseReceived': ({ response }) => response.status >= 400
        && problems.push(`${response.status} ${new URL(response.url).pathname}`),
    'Page.javascriptDialogOpening': ({ message }) => {
        problems.push('dialog: ' + message);
        send('Page.handleJavaScriptDialog', { accept: true });
    },
};
from.on('data', piece => {
    text += piece;
    for (let end; (end = text.indexOf('\0')) >= 0; text = text.slice(end + 1)) {
        const { id, method, params, result, error } = JSON.parse(text.slice(0, end));
        if (id) {
            const { resolve, reject, method } = waiting.get(id);
            waiting.delete(id);
            error ? reject(new Error(`${method}: ${error.message}`)) : resolve(result);
        } else
            events[method]?.(params);
    }
});

export const pause = ms => new Promise(resolve => setTimeout(resolve, ms));

export async function evaluate(expression) {
    const { result, exceptionDetails } = await send('Runtime.evaluate',
        { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails)
        throw new Error(`${expression}: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
    return result.value;
}

export async function until(expression, what = expression) {
    for (let i = 0; i < 200; i++) {
        if (await evaluate(expression))
            return true;
        await pause(25);
    }
    problems.push(`never: ${what}`);
    return false;
}

const frame = 'new Promise(drawn => requestAnimationFrame(() => setTimeout(drawn)))';

// Until a page that has drawn itself, and so has handled what was pressed, has nothing on its way, several times.
export async function settled(frames = 3) {
    for (let still = 0, i = 0; still < frames && i < 400; i++) {
        await evaluate(frame);
        still = open.size > 0 ? 0 : still + 1;
    }
}

export async function visit(url) {
    open.clear();
    await send('Page.navigate', { url });
}

export async function press(key, modifiers = 0) {
    const text = key.length === 1 ? key : { Enter: '\r', Space: ' ' }[key];
    await send('Input.dispatchKeyEvent', { type: 'keyDown', key: key === 'Space' ? ' ' : key, code: key, text,
        modifiers, windowsVirtualKeyCode: { Tab: 9, Enter: 13, Escape: 27, Space: 32 }[key] });
    await send('Input.dispatchKeyEvent', { type: 'keyUp', key: key === 'Space' ? ' ' : key, code: key, modifiers });
}

export async function picture(file) {
    writeFileSync(file, Buffer.from((await send('Page.captureScreenshot')).data, 'base64'));
}

let n = 0;
export function ok(good, name, said = '') {
    const why = good ? '' : '\n# ' + String(said).replaceAll('\n', '\n# ');
    console.log(`${good ? 'ok' : 'not ok'} ${++n} - ${name}${why}`);
}

export function finish() {
    console.log(`1..${n}`);
    process.exit(0);
}

session = (await send('Target.attachToTarget',
    { targetId: (await send('Target.createTarget', { url: 'about:blank' })).targetId, flatten: true })).sessionId;
for (const domain of ['Page', 'Runtime', 'Network', 'Log'])
    await send(domain + '.enable');
