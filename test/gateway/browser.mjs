// test/gateway/browser.mjs URL PICTURES: opens every page of the admin UI at URL in Chromium, presses every button, and
// keeps a picture of each page in the folder PICTURES. Prints TAP.
import { mkdirSync } from 'node:fs';
import { evaluate, finish, ok, picture, problems, send, settled, until, visit } from './chromium.mjs';

const [url, pictures] = process.argv.slice(2);
mkdirSync(pictures, { recursive: true });
async function show(path) {
    await visit(url + path);
    await until("document.readyState === 'complete' && document.querySelector('#root')?.innerText.length > 0",
        'the page is there');
    await settled(12);
}
// It asks before it deletes.
const found = () => problems.filter(problem => !problem.startsWith('dialog: ')).join('; ');
const crashed = () => evaluate("document.body.innerText.includes('Something went wrong')");

await send('Browser.grantPermissions', { permissions: ['clipboardReadWrite', 'clipboardSanitizedWrite'] });
await show('');
const pages = await evaluate("[...new Set([...document.querySelectorAll('nav a, aside a')].map(a => a.pathname))]");
ok(pages?.length > 5, 'the side bar names pages', pages);
// What a page of the list opens: the rows of its tables.
const buttons = `[...document.querySelectorAll('main button, main tbody tr')]
    .filter(b => !b.disabled && b.offsetParent)`;
for (const page of pages ?? []) {
    const path = page.replace(/^\/ojs\/admin\/?/, '');
    problems.length = 0;
    await show(path);
    await picture(`${pictures}/${path || 'dashboard'}.png`);
    ok(!await crashed() && found() === '', `/${path} opens`, found());
    const names = await evaluate(`${buttons}.map(b => b.innerText.trim().split('\\n')[0])`);
    const bad = [];
    for (let i = 0; i < Math.min(names.length, 25); i++) {
        problems.length = 0;
        await show(path);
        await evaluate(`${buttons}[${i}]?.click()`);
        await settled(12);
        // A dialog is filled in, and confirmed.
        const dialog = "[...document.querySelectorAll('.fixed')].at(-1)";
        if (await evaluate(`!!${dialog}`)) {
            await picture(`${pictures}/${path || 'dashboard'}-${i}.png`);
            await evaluate(`[...${dialog}.querySelectorAll('button')].at(-1)?.click()`);
            await settled(12);
        }
        if (await crashed() || found() !== '')
            bad.push(`${names[i]}: ${await crashed() ? 'crash ' : ''}${found()}`);
    }
    ok(bad.length === 0, `/${path}: ${names.length} buttons and rows`, bad.join('\n'));
}
finish();
