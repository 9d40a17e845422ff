"""Draws a report's figures as horizontal bars, one panel per question, into an SVG file. Needs matplotlib."""
import statistics

COLOURS = {"ojs": "#2f6fde"}
OTHERS = "#b8bec9"

# workload, label of the case, key, title, what is better
PANELS = (
    ("work", "1 client", "cpu_us", "Claim + ack, one at a time: CPU µs per job", "less"),
    ("work", "4 clients", "rate", "The same with 4 clients: jobs per second", "more"),
    ("work-batch", "1 client", "rate", "Claim + ack in batches of 100: jobs per second", "more"),
    ("push", "4 clients", "rate", "Push, 4 clients: jobs per second", "more"),
    ("life", "1 client", "wal", "Push, claim and ack: bytes of WAL per job", "less"),
    ("held", "snapshot held", "last_p50_us", "Claim beside an old snapshot, last tenth: µs", "less"),
)


def medians(cells, key):
    """{system: median of its repeats}"""
    result = {}
    for system, records in cells.items():
        values = [r[key] for r in records if r.get(key) is not None] if isinstance(records, list) else []
        if values:
            result[system] = statistics.median(values)
    return result


def draw(results, path):
    """Writes the panels that `results` has figures for; False if there is none."""
    panels = [(title, better, medians(results.get(workload, {}).get(label, {}), key))
              for workload, label, key, title, better in PANELS]
    panels = [panel for panel in panels if len(panel[2]) > 1]
    if not panels:
        return False

    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "ojs", "font.family": "sans-serif"})
    rows = (len(panels) + 1) // 2
    figure, axes = pyplot.subplots(rows, 2, figsize=(11, 2.1 * rows), squeeze=False, layout="constrained")
    for ax, (title, better, figures) in zip(axes.flat, panels):
        systems = sorted(figures, key=figures.get, reverse=better == "less")
        bars = ax.barh(systems, [figures[s] for s in systems], color=[COLOURS.get(s, OTHERS) for s in systems])
        ax.bar_label(bars, [f"{figures[s]:,.0f}" for s in systems], padding=3, fontsize=8)
        ax.set_title(f"{title} ({better} is better)", fontsize=9, loc="left")
        ax.tick_params(labelsize=8, length=0)
        ax.set_xticks([])
        ax.margins(x=0.12)
        for side in ("top", "right", "bottom"):
            ax.spines[side].set_visible(False)
    for ax in axes.flat[len(panels):]:
        ax.set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    return True
