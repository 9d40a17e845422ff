// charts.js: lines over time, drawn as SVG as wide as there is room.
import { h, svg, show, clock, day } from './dom.js';

const left = 52,
    right = 8,
    top = 8,
    bottom = 22;

// state: {title, series: [{name, class, points: [[ms, value]]}], format(value), from, until (ms), height}
export function chart(state) {
    const figure = h('figure', { class: 'chart', key: 'chart ' + state.title });
    figure.state = state;
    figure.at = null; /* the moment that is pointed at */
    figure.update = fresh => {
        figure.state = fresh;
        draw(figure);
    };
    figure.watcher = new ResizeObserver(() => draw(figure));
    figure.watcher.observe(figure);
    return figure;
}

// Round numbers from 0 to no less than the greatest.
export function ticks(greatest) {
    if (!(greatest > 0)) return [0, 1];
    const rough = greatest / 4,
        size = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(n => n * size).find(n => n >= rough);
    return Array.from({ length: Math.ceil(greatest / step - 1e-9) + 1 }, (_, i) => Number((i * step).toPrecision(12)));
}

// Moments on the clock, at most so many.
function hours(from, until, most) {
    const minute = 60000,
        zone = new Date(from).getTimezoneOffset() * minute;
    const step =
        [5, 10, 15, 30, 60, 180, 360, 720, 1440, 2880].map(n => n * minute).find(n => (until - from) / n <= most) ??
        until - from;
    const first = Math.ceil((from - zone) / step) * step + zone;
    return Array.from({ length: Math.floor((until - first) / step) + 1 }, (_, i) => first + i * step).filter(
        at => at > from && at < until,
    );
}

function draw(figure) {
    const { title, series, format, from, until, height = 180 } = figure.state;
    const width = Math.floor(figure.clientWidth);
    if (width < 60) return;
    const marks = ticks(Math.max(0, ...series.flatMap(line => line.points.map(([, value]) => value))));
    const greatest = marks.at(-1);
    const x = at => left + ((at - from) / (until - from)) * (width - left - right);
    const y = value => height - bottom - (value / greatest) * (height - top - bottom);
    const moments = [...new Set(series.flatMap(line => line.points.map(([at]) => at)))].sort((a, b) => a - b);
    const at =
        figure.at === null
            ? null
            : moments.reduce(
                  (best, one) => (Math.abs(one - figure.at) < Math.abs(best - figure.at) ? one : best),
                  moments[0],
              );
    const long = until - from > 86400000 * 1.5;
    const stamp = ms =>
        long
            ? day(new Date(ms)).slice(5) + (until - from > 86400000 * 8 ? '' : ' ' + clock(new Date(ms), false))
            : clock(new Date(ms), false);
    const value = (line, moment) => line.points.find(([one]) => one === moment)?.[1];
    const latest = line => line.points.at(-1)?.[1];

    show(figure, [
        h(
            'figcaption',
            {},
            h('span', { class: 'title' }, title),
            h(
                'span',
                { class: 'legend' },
                series.map(line =>
                    h(
                        'span',
                        { class: line.class },
                        svg(
                            'svg',
                            { viewBox: '0 0 10 10', 'aria-hidden': 'true' },
                            svg('rect', { width: 10, height: 10, rx: 2 }),
                        ),
                        `${line.name} `,
                        h('b', {}, format(at === null || at === undefined ? latest(line) : value(line, at)) || '–'),
                    ),
                ),
            ),
            h('span', { class: 'when' }, at ? stamp(at) : 'latest'),
        ),
        svg(
            'svg',
            {
                width,
                height,
                viewBox: `0 0 ${width} ${height}`,
                role: 'img',
                tabindex: 0,
                'aria-label': summary(figure.state),
            },
            marks.map(mark => [
                svg('line', { class: 'grid', x1: left, x2: width - right, y1: y(mark), y2: y(mark) }),
                svg('text', { x: left - 6, y: y(mark) + 4, 'text-anchor': 'end' }, format(mark)),
            ]),
            hours(from, until, (width - left) / (long ? 100 : 70)).map(moment =>
                svg('text', { x: x(moment), y: height - 6, 'text-anchor': 'middle' }, stamp(moment)),
            ),
            at && svg('line', { class: 'cross', x1: x(at), x2: x(at), y1: top, y2: height - bottom }),
            series.map(line =>
                svg(
                    'g',
                    { class: line.class },
                    svg('path', {
                        class: 'line',
                        d: path(line.points.map(([moment, value]) => [x(moment), y(value)])),
                    }),
                    line.points.length === 1 &&
                        svg('circle', { cx: x(line.points[0][0]), cy: y(line.points[0][1]), r: 2.5 }),
                    at && value(line, at) !== undefined && svg('circle', { cx: x(at), cy: y(value(line, at)), r: 3 }),
                ),
            ),
        ),
    ]);
    const area = figure.querySelector('svg[role=img]');
    area.onpointermove = event =>
        point(figure, from + ((event.offsetX - left) / (width - left - right)) * (until - from));
    area.onpointerleave = () => point(figure, null);
    area.onblur = () => point(figure, null);
    area.onkeydown = event => {
        const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!step || moments.length === 0) return;
        event.preventDefault();
        const i = at === null ? moments.length : moments.indexOf(at);
        point(figure, moments[Math.min(moments.length - 1, Math.max(0, i + step))]);
    };
}

function point(figure, at) {
    if (at === figure.at) return;
    figure.at = at;
    draw(figure);
}

const path = points => points.map(([x, y], i) => `${i === 0 ? 'M' : 'L'}${x.toFixed(1)} ${y.toFixed(1)}`).join('');

function summary({ title, series, format }) {
    return (
        `${title}. ` +
        series
            .map(line => {
                const values = line.points.map(([, value]) => value);
                return values.length === 0
                    ? `${line.name}: nothing`
                    : `${line.name}: latest ${format(values.at(-1))}, highest ${format(Math.max(...values))}`;
            })
            .join('. ')
    );
}
