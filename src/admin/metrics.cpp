/*
 * metrics.cpp: ojs.metrics(), what has happened to jobs and where they are, in the text format of Prometheus. SQL says
 * what there is to tell; the lines, some fifty for each queue and type of job, are written here.
 */
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/counters/metric_table.h"
#include "ojs/store/spi.h"
#include "ojs/upkeep/duties.h"
#include "ojs/admin/health.h"
#include "ojs/admin/shared_use.h"

using namespace ojs;

namespace
{

constexpr const char *states[] = {"active",    "available", "cancelled", "completed",
                                  "discarded", "pending",   "retryable", "scheduled"};
constexpr int n_states = lengthof(states);
constexpr int state_active = 0;
constexpr int paused = n_states; /* behind the counts */

/* Names of queues and types hold nothing that a label would have to escape. */
constexpr char queues_sql[] = R"sql(
    select ojs_store.queue_labels(q.name),
        array[c.active, c.available, c.cancelled, c.completed, c.discarded, c.pending, c.retryable, c.scheduled,
            (q.state = 'paused')::int]
    from ojs.queues q
    join ojs_store.queue_counts(array(select ojs_store.queue_id(name) from ojs.queues)) c
        on c.queue = ojs_store.queue_id(q.name)
    order by q.name
)sql";
constinit Statement queues_now = {queues_sql, {}, nullptr};

constexpr char series_sql[] = R"sql(
    select format('%s,type="%s"', ojs_store.queue_labels(q.name), f.type) as labels, f.cells, f.sums
    from (
        select * from ojs_store.shared_metrics() where $1
        union all
        select * from ojs_store.metrics_of_rows() where not $1
    ) f
    join (select distinct id, name from ojs_store.queue) q
        on q.id = f.queue and ojs_store.may_use_queue(q.id, 'read')
    order by labels
)sql";
constinit Statement series_now = {series_sql, {BOOLOID}, nullptr};

constexpr char server_sql[] = R"sql(
    select '', array[(select count(*) from ojs_store.worker w, ojs_store.caller_tenant() t (tenant)
            where ojs_store.worker_status(w, null) = 'running'
                and (t.tenant is null or right(w.name, length(t.tenant) + 1) = '@' || t.tenant)),
        $1::int, (ojs_store.maintenance_json() -> 'maintenance')::boolean::int]
)sql";
constexpr char webhooks_sql[] = R"sql(
    select '', array[count(*), coalesce(sum(pending), 0)::bigint, coalesce(sum(delivered), 0)::bigint,
        coalesce(sum(retried), 0)::bigint, coalesce(sum(dead), 0)::bigint, coalesce(sum(dropped), 0)::bigint]
    from ojs_store.webhook_status s join ojs_store.webhook w on w.id = s.webhook
    where ojs_store.may_see_tenant(w.tenant)
)sql";
constinit Statement webhooks_now = {webhooks_sql, {}, nullptr};
constinit Statement server_now = {server_sql, {BOOLOID}, nullptr};

struct Labelled {
    std::string_view labels;
    const int64 *n;
    const int64 *sums; /* of series, µs */
};

struct Listing {
    Labelled *all;
    int n;

    Labelled *begin() const { return all; }
    Labelled *end() const { return all + n; }
};

Listing
read_listing(Statement &statement, std::initializer_list<SpiArg> args = {})
{
    auto rows = static_cast<int>(execute(statement, args));
    Listing list = {static_cast<Labelled *>(palloc0(sizeof(Labelled) * (rows + 1))), rows};
    for (int i = 0; i < rows; i++) {
        bool null;
        auto numbers = [&](int column) {
            return reinterpret_cast<int64 *>(ARR_DATA_PTR(DatumGetArrayTypeP(cell(i, column, &null))));
        };
        list.all[i].labels = view(DatumGetTextPP(cell(i, 1, &null)));
        list.all[i].n = numbers(2);
        if (SPI_tuptable->tupdesc->natts > 2)
            list.all[i].sums = numbers(3);
    }
    return list;
}

/* --- the text --- */

struct Lines {
    StringInfoData text;      /* with the header of a value */
    std::string_view since;   /* since when there are metrics */
    std::string_view counter; /* the type of those metrics that never fall as long as the server runs */

    void put(std::string_view part) { appendBinaryStringInfo(&text, part.data(), static_cast<int>(part.size())); }

    void put(int64 n)
    {
        char digits[MAXINT8LEN + 1];
        put(std::string_view(digits, pg_lltoa(n, digits)));
    }

    template <typename... Parts> void add(Parts... parts) { (put(parts), ...); }

    void family(std::string_view name, std::string_view type, std::string_view help, std::string_view more = "")
    {
        add("# HELP ", name, " ", help, more, ".\n# TYPE ", name, " ", type, "\n");
    }

    void counters(std::string_view name, std::string_view help, const Listing &series, int first_cell,
                  int n_cells_of_it)
    {
        if (series.n > 0)
            family(name, counter, help, since);
        for (const Labelled &one : series) {
            int64 sum = 0;
            for (int i = 0; i < n_cells_of_it; i++)
                sum += one.n[first_cell + i];
            add(name, "{", one.labels, "} ", sum, "\n");
        }
    }

    void gauges(std::string_view name, std::string_view help, const Listing &of, int which)
    {
        if (of.n > 0)
            family(name, "gauge", help);
        for (const Labelled &one : of)
            add(name, "{", one.labels, "} ", one.n[which], "\n");
    }

    void gauge(std::string_view name, std::string_view help, int64 n)
    {
        family(name, "gauge", help);
        add(name, " ", n, "\n");
    }

    void depths(std::string_view name, const Listing &queues)
    {
        if (queues.n > 0)
            family(name, "gauge", "Jobs by state; of finished ones those that are kept");
        for (const Labelled &queue : queues)
            for (int s = 0; s < n_states; s++)
                add(name, "{", queue.labels, ",state=\"", states[s], "\"} ", queue.n[s], "\n");
    }
};

struct Histogram {
    std::string_view name;
    std::string_view help;
    int n_buckets;
    bool begun;                        /* its family has been announced */
    char ends[n_duration_buckets][24]; /* of the buckets, in seconds; with the end of the labels */

    template <size_t n>
    Histogram(std::string_view its_name, std::string_view its_help, const int64 (&bounds)[n])
        : name(its_name), help(its_help), n_buckets(n + 1), begun(false)
    {
        for (size_t i = 0; i < n; i++)
            snprintf(ends[i], sizeof ends[i], ",le=\"%g\"} ", static_cast<double>(bounds[i]) / USECS_PER_SEC);
        strlcpy(ends[n], ",le=\"+Inf\"} ", sizeof ends[n]);
    }

    void write(Lines &lines, std::string_view labels, std::string_view more_labels, const int64 *cells, int64 sum_us)
    {
        int64 below = 0;
        if (std::all_of(cells, cells + n_buckets, [](int64 n) { return n == 0; }))
            return;
        if (!begun)
            lines.family(name, "histogram", help, lines.since);
        begun = true;
        for (int i = 0; i < n_buckets; i++) {
            below += cells[i]; /* a bucket counts those below it, too */
            lines.add(name, "_bucket{", labels, more_labels, ends[i], below, "\n");
        }
        Datum seconds = Float8GetDatum(static_cast<double>(sum_us) / USECS_PER_SEC);
        const char *sum = DatumGetCString(DirectFunctionCall1(float8out, seconds));
        lines.add(name, "_sum{", labels, more_labels, "} ", sum, "\n", name, "_count{", labels, more_labels, "} ",
                  below, "\n");
    }
};

void
write_duties(Lines &lines)
{
    DutyState states[n_duties];
    read_duty_states(states);
    lines.family("ojs_upkeep_failures_total", "counter", "Failed runs of a duty of upkeep");
    for (int i = 0; i < n_duties; i++)
        lines.add("ojs_upkeep_failures_total{duty=\"", duty_name(static_cast<Duty>(i)), "\"} ", states[i].failures,
                  "\n");
    lines.family("ojs_upkeep_last_success_timestamp_seconds", "gauge", "When a duty of upkeep last succeeded");
    for (int i = 0; i < n_duties; i++)
        if (states[i].good_at != 0)
            lines.add("ojs_upkeep_last_success_timestamp_seconds{duty=\"", duty_name(static_cast<Duty>(i)), "\"} ",
                      static_cast<int64>(timestamptz_to_time_t(states[i].good_at)), "\n");
}

void
write_webhooks(Lines &lines, const int64 *n)
{
    constexpr const char *outcomes[] = {"delivered", "retried", "dead", "dropped"};
    lines.gauge("ojs_webhook_subscriptions", "Subscriptions to events", n[0]);
    lines.gauge("ojs_webhook_pending", "Deliveries that are due or wait to be tried again", n[1]);
    lines.family(
        "ojs_webhook_delivery_total", "counter",
        "Attempts of deliveries by outcome, and events that were dropped; of the subscriptions that are there");
    for (int i = 0; i < static_cast<int>(lengthof(outcomes)); i++)
        lines.add("ojs_webhook_delivery_total{outcome=\"", outcomes[i], "\"} ", n[2 + i], "\n");
}

void
write_shared_memory(Lines &lines)
{
    lines.gauge("ojs_counting_rows", "1 while jobs are counted by reading rows", !has_counters());
    if (!shared_memory())
        return;
    SharedUse uses[n_shared_uses];
    read_shared_uses(uses);
    lines.family("ojs_shared_memory_used", "gauge", "Entries in shared memory, of all databases");
    for (const SharedUse &use : uses)
        lines.add("ojs_shared_memory_used{of=\"", use.what, "\"} ", use.used, "\n");
    lines.family("ojs_shared_memory_limit", "gauge", "Entries for which there is room in shared memory");
    for (const SharedUse &use : uses)
        lines.add("ojs_shared_memory_limit{of=\"", use.what, "\"} ", use.most, "\n");
}

void
write(Lines &lines, const Listing &queues, const Listing &series, const Listing &server)
{
    constexpr int of_end = n_duration_buckets + 1;
    lines.counters("ojs_job_enqueued_total", "Jobs pushed", series, cell_enqueued, 1);
    lines.counters("ojs_job_completed_total", "Jobs that reached completed", series, cell_completed, of_end);
    lines.counters("ojs_job_failed_total", "Jobs that reached discarded", series, cell_discarded, of_end);
    lines.counters("ojs_job_retried_total", "Jobs that failed and are tried again", series, cell_retried, 1);
    lines.counters("ojs_job_cancelled_total", "Jobs that reached cancelled", series, cell_cancelled, of_end);
    lines.counters("ojs_job_expired_total", "Jobs discarded because their time was over", series, cell_expired, 1);

    Histogram durations("ojs_job_duration_seconds", "From the last delivery to the end", duration_bounds);
    for (const Labelled &one : series) {
        durations.write(lines, one.labels, ",state=\"completed\"", one.n + cell_completed, one.sums[sum_completed]);
        durations.write(lines, one.labels, ",state=\"discarded\"", one.n + cell_discarded, one.sums[sum_discarded]);
        durations.write(lines, one.labels, ",state=\"cancelled\"", one.n + cell_cancelled, one.sums[sum_cancelled]);
    }
    Histogram waits("ojs_job_queue_time_seconds", "From when it was pushed or due to the first delivery", wait_bounds);
    for (const Labelled &one : series)
        waits.write(lines, one.labels, "", one.n + cell_wait, one.sums[sum_wait]);

    lines.depths("ojs_queue_depth", queues);
    lines.gauges("ojs_workers_busy", "Jobs that workers hold", queues, state_active);
    lines.gauges("ojs_queue_paused", "1 where a queue is paused", queues, paused);
    lines.gauge("ojs_workers_active", "Workers that are running", server.all->n[0]);
    lines.gauge("ojs_upkeep_running", "1 while a background worker runs, or comes in its turn", server.all->n[1]);
    lines.gauge("ojs_maintenance", "1 while the server is in maintenance", server.all->n[2]);
    write_duties(lines);
    write_shared_memory(lines);
}

} // namespace

/* ojs.metrics() returns text */
OJS_FUNCTION(ojs_metrics)
{
    bool shared = job_metrics != nullptr && !RecoveryInProgress();
    Lines lines = {};
    lines.counter = shared ? "counter" : "gauge";
    lines.since = shared ? ", since the server started" : ", of the jobs that are kept";
    initStringInfo(&lines.text);
    lines.put(std::string_view("\0\0\0", VARHDRSZ));
    with_spi([&] {
        Listing series = read_listing(series_now, {BoolGetDatum(shared)});
        Listing queues = read_listing(queues_now);
        write(lines, queues, series, read_listing(server_now, {BoolGetDatum(upkeep_served())}));
        write_webhooks(lines, read_listing(webhooks_now).all->n);
    });
    SET_VARSIZE(lines.text.data, lines.text.len);
    PG_RETURN_TEXT_P(lines.text.data);
}
