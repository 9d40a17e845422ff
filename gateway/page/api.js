// api.js: asks the gateway, with the token of this tab if there is one.

const root = new URL('../', document.baseURI);
const tokenName = 'ojs.token';

export class Problem extends Error {
    constructor(status, error) {
        super(error.message ?? `The server answered ${status}.`);
        this.status = status;
        this.hint = error.hint;
        this.requestId = error.request_id;
    }
}

export const token = {
    get: () => sessionStorage.getItem(tokenName),
    set: value => (value ? sessionStorage.setItem(tokenName, value) : sessionStorage.removeItem(tokenName)),
};

// path`jobs/${id}`: whatever an id holds, it stays one part of the path. Dots alone cannot: they lead to another one.
export function path(parts, ...values) {
    if (values.some(value => /^\.{1,2}$/.test(value)))
        throw new Problem(400, { message: 'A name of dots alone cannot be part of an address.', hint: 'Use SQL.' });
    return parts.reduce((text, part, i) => text + encodeURIComponent(values[i - 1]) + part);
}

// What is empty is left out.
export function query(parameters) {
    const given = Object.entries(parameters).filter(
        ([, value]) => value !== undefined && value !== null && value !== '',
    );
    return given.length ? '?' + new URLSearchParams(given) : '';
}

function headers(more = {}) {
    const secret = token.get();
    return secret ? { Authorization: `Bearer ${secret}`, ...more } : more;
}

async function send(method, target, body, signal) {
    const limit = AbortSignal.timeout(60000);
    try {
        return await fetch(new URL(target, root), {
            method,
            cache: 'no-store',
            credentials: 'same-origin',
            redirect: 'error',
            signal: signal ? AbortSignal.any([signal, limit]) : limit,
            headers: headers(body === undefined ? {} : { 'Content-Type': 'application/json' }),
            body: body === undefined ? undefined : JSON.stringify(body),
        });
    } catch (error) {
        if (signal?.aborted) throw error;
        throw new Problem(0, {
            message: 'The gateway does not answer.',
            hint: 'It may be restarting. This page tries again.',
        });
    }
}

async function read(response) {
    const text = await response.text();
    try {
        return text ? JSON.parse(text) : null;
    } catch {
        throw new Problem(response.status, { message: 'The answer is not JSON.', hint: 'A proxy may have made it.' });
    }
}

// Targets are below /ojs/v1 unless they begin with a slash.
export async function call(method, target, body, signal) {
    const response = await send(method, target.startsWith('/') ? target.slice(1) : 'ojs/v1/' + target, body, signal);
    const answer = await read(response);
    if (!response.ok) throw new Problem(response.status, answer?.error ?? {});
    return answer;
}

export const get = (target, signal) => call('GET', target, undefined, signal);

// A server that is not well answers 503, and says what it lacks.
export async function health(signal) {
    const response = await send('GET', 'ojs/v1/health', undefined, signal);
    const answer = await read(response);
    if (!response.ok && !answer?.status) throw new Problem(response.status, answer?.error ?? {});
    return answer;
}

// ACCESS: what the role may do and the gateway serves.

let access = { role: '', duties: [] };

export async function readAccess() {
    const gateway = await (await send('GET', 'page/gateway.json')).json();
    access = await get('admin/access');
    access.duties = access.duties.filter(duty => gateway.duties.includes(duty));
    access.adminUi = gateway.admin_ui;
}

export const may = duty => access.duties.includes(duty);
export const role = () => access.role;
export const adminUi = () => access.adminUi;

// EVENT STREAMS: read with fetch(), since an EventSource sends no token.

export async function* eventsOf(target, signal) {
    let last = '';
    for (let pause = 1000; !signal.aborted; pause = Math.min(pause * 2, 30000)) {
        try {
            const more = last ? { 'Last-Event-ID': last } : {};
            const response = await fetch(new URL('ojs/v1/' + target, root), {
                signal,
                cache: 'no-store',
                headers: headers({ Accept: 'text/event-stream', ...more }),
            });
            if (!response.ok) throw new Problem(response.status, (await read(response))?.error ?? {});
            yield { type: 'open' };
            for await (const event of parse(response.body)) {
                last = event.id ?? last;
                pause = 1000;
                if (event.data) yield { type: 'event', data: JSON.parse(event.data) };
            }
        } catch (error) {
            if (signal.aborted || (error instanceof Problem && error.status < 500)) throw error;
        }
        yield { type: 'closed' };
        await new Promise(resolve => setTimeout(resolve, pause));
    }
}

async function* parse(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = '';
    for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        text += value;
        for (let end; (end = text.indexOf('\n\n')) >= 0; text = text.slice(end + 2)) {
            const event = {};
            for (const line of text.slice(0, end).split('\n')) {
                const colon = line.indexOf(':');
                if (colon > 0) event[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
            }
            yield event;
        }
    }
}
