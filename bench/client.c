/*
 * client.c: runs one workload of one system against one server and prints what it cost, as one line of JSON.
 *
 * A system is a file of named statements (folder systems; for peers from npm, written by peers.mjs), each with the
 * source of its parameters, so every system is driven by the same loop: prepared statements, text format, one
 * connection per thread. Server CPU is utime + stime of the postmaster, its children, and its children that ended;
 * connections stay open until it is read.
 */
#include <ctype.h>
#include <dirent.h>
#include <libpq-fe.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MAX_STATEMENTS = 32, MAX_PARAMS = 12, NOT_SUPPORTED = 3, WARM_UP = 12 };

typedef struct {
    char *data;
    size_t length, size;
} Text;

typedef struct {
    char kind[16];
    char *text;
} Param;

typedef struct {
    char name[40];
    char *sql;
    int nparams;
    Param params[MAX_PARAMS];
} Statement;

typedef struct {
    PGconn *conn;
    int number;
    uint64_t random;
    bool prepared[MAX_STATEMENTS];
    Text params[MAX_PARAMS];
    char **ids, **leases;
    int nids, room;
    char batch[32];
    long jobs, empty;
    float *claim_us;
    long nclaims, claims_room;
} Session;

static Statement statements[MAX_STATEMENTS];
static int nstatements;
static atomic_ulong payload_number;

/* What was asked for. */
static const char *dsn = "", *spec, *mode = "push", *via = "listen", *push_name = "push";
static int batch = 1, clients = 1, hold, waiters, postmaster, announce;
static long jobs_limit, preload, preload_batch = 1000;
static double seconds = 3, rate; /* jobs a second, of all clients; 0: as many as can be done */

static pthread_barrier_t ready_barrier, start_barrier;
static atomic_bool stop;
static atomic_long jobs_done;
static double deadline;

static void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "bench client: ");
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void add(Text *text, const char *data, size_t length) {
    if (text->length + length + 1 > text->size) {
        text->size = (text->length + length + 1) * 2;
        text->data = realloc(text->data, text->size);
    }
    memcpy(text->data + text->length, data, length);
    text->length += length;
    text->data[text->length] = '\0';
}

static void add_string(Text *text, const char *string) { add(text, string, strlen(string)); }

/* Statements ------------------------------------------------------------------------------------------------------ */

/* -- @name opens a statement, -- $ kind text gives the source of its next parameter, all else is its SQL. */
static void read_statements(const char *path) {
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t size = 0;
    Statement *s = NULL;
    Text sql = {0};

    if (!file)
        die("cannot read %s", path);
    while (getline(&line, &size, file) >= 0) {
        if (strncmp(line, "-- @", 4) == 0) {
            if (s)
                s->sql = strdup(sql.data ? sql.data : "");
            sql.length = 0;
            if (nstatements == MAX_STATEMENTS)
                die("too many statements in %s", path);
            s = &statements[nstatements++];
            sscanf(line + 4, "%39s", s->name);
        } else if (s && strncmp(line, "-- $ ", 5) == 0) {
            Param *p = &s->params[s->nparams++];
            char *rest = line + 5;
            line[strcspn(line, "\n")] = '\0';
            sscanf(rest, "%15s", p->kind);
            rest += strlen(p->kind);
            p->text = strdup(*rest == ' ' ? rest + 1 : rest);
        } else if (s && strncmp(line, "--", 2) != 0)
            add_string(&sql, line);
    }
    if (s)
        s->sql = strdup(sql.data ? sql.data : "");
    fclose(file);
}

static int find(const char *name) {
    for (int i = 0; i < nstatements; i++)
        if (strcmp(statements[i].name, name) == 0)
            return i;
    return -1;
}

static int need(const char *name) {
    int i = find(name);
    if (i < 0)
        exit(NOT_SUPPORTED);
    return i;
}

static int sized(const char *verb, int size) {
    char name[40];
    int i;

    snprintf(name, sizeof name, "%s_%d", verb, size);
    if (size == 1)
        return need(verb);
    if ((i = find(name)) >= 0)
        return i;
    snprintf(name, sizeof name, "%s_many", verb);
    return need(name);
}

/* Parameters ------------------------------------------------------------------------------------------------------ */

static uint64_t next_random(Session *s) {
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return s->random;
}

/* About 200 bytes of JSON, different for every job, put for %s in a template; escaped if it goes into an array. */
static void add_payload(Session *s, Text *out, const char *template, bool escape) {
    char body[256];
    unsigned long number = atomic_fetch_add(&payload_number, 1);
    int length = snprintf(body, sizeof body,
                          "{\"n\":%lu,\"to\":\"user%06u@example.com\",\"subject\":\"Order %u has shipped\","
                          "\"body\":\"%016lx%016lx%016lx%016lx%016lx%016lx\",\"html\":false}",
                          number, (unsigned) (next_random(s) % 1000000), (unsigned) (next_random(s) % 1000000),
                          next_random(s), next_random(s), next_random(s), next_random(s), next_random(s),
                          next_random(s));
    const char *hole = *template ? strstr(template, "%s") : NULL;
    Text whole = {0};

    if (hole) {
        add(&whole, template, hole - template);
        add(&whole, body, length);
        add_string(&whole, hole + 2);
    } else
        add(&whole, body, length);
    if (escape) {
        add_string(out, "\"");
        for (char *c = whole.data; *c; c++) {
            if (*c == '"' || *c == '\\')
                add_string(out, "\\");
            add(out, c, 1);
        }
        add_string(out, "\"");
    } else
        add(out, whole.data, whole.length);
    free(whole.data);
}

static void add_array(Text *out, char **items, int n) {
    add_string(out, "{");
    for (int i = 0; i < n; i++) {
        if (i)
            add_string(out, ",");
        add_string(out, items[i]);
    }
    add_string(out, "}");
}

static const char *make_param(Session *s, Text *out, const Param *p, int n) {
    char number[24];

    out->length = 0;
    add_string(out, "");
    if (strcmp(p->kind, "payload") == 0)
        add_payload(s, out, p->text, false);
    else if (strcmp(p->kind, "array") == 0 || strcmp(p->kind, "pgarray") == 0) {
        bool json = p->kind[0] == 'a';
        add_string(out, json ? "[" : "{");
        for (int i = 0; i < n; i++) {
            if (i)
                add_string(out, ",");
            add_payload(s, out, p->text, !json);
        }
        add_string(out, json ? "]" : "}");
    } else if (strcmp(p->kind, "n") == 0) {
        snprintf(number, sizeof number, "%d", n);
        add_string(out, number);
    } else if (strcmp(p->kind, "worker") == 0) {
        snprintf(number, sizeof number, "w%d", s->number);
        add_string(out, number);
    } else if (strcmp(p->kind, "id") == 0)
        add_string(out, s->nids ? s->ids[0] : "");
    else if (strcmp(p->kind, "ids") == 0)
        add_array(out, s->ids, s->nids);
    else if (strcmp(p->kind, "lease") == 0)
        add_string(out, s->nids ? s->leases[0] : "");
    else if (strcmp(p->kind, "leases") == 0)
        add_array(out, s->leases, s->nids);
    else if (strcmp(p->kind, "batch") == 0)
        add_string(out, s->batch);
    else if (strcmp(p->kind, "const") == 0)
        add_string(out, p->text);
    else if (strcmp(p->kind, "null") == 0)
        return NULL;
    else
        die("unknown parameter source %s", p->kind);
    return out->data;
}

static void check(PGconn *conn, PGresult *result, const char *what) {
    ExecStatusType status = PQresultStatus(result);
    if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
        die("%s: %s", what, PQerrorMessage(conn));
}

static const char **prepare(Session *s, int i, int n, const char **values) {
    Statement *st = &statements[i];
    if (!s->prepared[i]) {
        PGresult *result = PQprepare(s->conn, st->name, st->sql, 0, NULL);
        check(s->conn, result, st->name);
        PQclear(result);
        s->prepared[i] = true;
    }
    for (int p = 0; p < st->nparams; p++)
        values[p] = make_param(s, &s->params[p], &st->params[p], n);
    return values;
}

static PGresult *run(Session *s, int i, int n) {
    const char *values[MAX_PARAMS];
    PGresult *result;

    prepare(s, i, n, values);
    result = PQexecPrepared(s->conn, statements[i].name, statements[i].nparams, values, NULL, NULL, 0);
    check(s->conn, result, statements[i].name);
    return result;
}

static void run_quietly(Session *s, int i, int n) { PQclear(run(s, i, n)); }

static PGconn *connect_to_server(void) {
    PGconn *conn = PQconnectdb(dsn);
    if (PQstatus(conn) != CONNECTION_OK)
        die("%s", PQerrorMessage(conn));
    return conn;
}

static void command(PGconn *conn, const char *sql) {
    PGresult *result = PQexec(conn, sql);
    check(conn, result, sql);
    PQclear(result);
}

static double scalar(PGconn *conn, const char *sql) {
    PGresult *result = PQexec(conn, sql);
    double value;
    check(conn, result, sql);
    value = atof(PQgetvalue(result, 0, 0));
    PQclear(result);
    return value;
}

static void open_session(Session *s, int number) {
    memset(s, 0, sizeof *s);
    s->conn = connect_to_server();
    s->number = number;
    s->random = 0x9e3779b97f4a7c15ULL * (number + 1) ^ (uint64_t) (now() * 1e9);
    s->room = 1024;
    s->ids = calloc(s->room, sizeof *s->ids);
    s->leases = calloc(s->room, sizeof *s->leases);
}

/* Work ------------------------------------------------------------------------------------------------------------ */

static void remember(Session *s, PGresult *result) {
    int id = PQfnumber(result, "id"), lease = PQfnumber(result, "lease_id");

    for (int i = 0; i < s->nids; i++) {
        free(s->ids[i]);
        free(s->leases[i]);
    }
    s->nids = PQntuples(result);
    if (s->nids > s->room)
        die("a claim of more than %d jobs", s->room);
    for (int i = 0; i < s->nids; i++) {
        s->ids[i] = strdup(PQgetvalue(result, i, id < 0 ? 0 : id));
        s->leases[i] = strdup(lease < 0 ? "" : PQgetvalue(result, i, lease));
    }
}

static void note_claim(Session *s, double took) {
    if (s->nclaims == s->claims_room) {
        s->claims_room = s->claims_room ? s->claims_room * 2 : 4096;
        s->claim_us = realloc(s->claim_us, s->claims_room * sizeof *s->claim_us);
    }
    s->claim_us[s->nclaims++] = took * 1e6;
}

/* A log-shaped system opens a batch first, and may find it empty; it has none when there is nothing to do. */
static int claim(Session *s, int size) {
    double start = now();
    int open = find("open");

    for (;;) {
        PGresult *result;
        if (open >= 0) {
            result = run(s, open, size);
            snprintf(s->batch, sizeof s->batch, "%s", PQgetvalue(result, 0, 0));
            PQclear(result);
            if (!s->batch[0])
                return s->nids = 0;
        }
        result = run(s, sized("claim", size), size);
        if (PQntuples(result))
            note_claim(s, now() - start);
        remember(s, result);
        PQclear(result);
        if (s->nids || open < 0)
            return s->nids;
        run_quietly(s, sized("ack", size), 0);
    }
}

static void push(Session *s, int size) {
    int tick = find("tick");
    run_quietly(s, size == 1 ? need(push_name) : need("push_many"), size);
    if (tick >= 0)
        run_quietly(s, tick, size);
}

/* One cycle of the workload; the number of jobs that got through. */
static int cycle(Session *s) {
    int n;

    if (strcmp(mode, "push") == 0) {
        run_quietly(s, batch == 1 ? need(push_name) : need("push_many"), batch);
        return batch;
    }
    if (strcmp(mode, "life") == 0)
        push(s, batch);
    if (strcmp(mode, "loop") == 0) {
        double start = now();
        PGresult *result = run(s, need("ack_claim"), batch);
        if (PQntuples(result))
            note_claim(s, now() - start);
        n = s->nids;
        remember(s, result);
        PQclear(result);
        return n;
    }
    n = claim(s, batch);
    if (n)
        run_quietly(s, sized("ack", batch), n);
    return n;
}

/* Waits until so many jobs of the session are due. */
static void keep_rate(double start, long jobs) {
    double left = start + jobs * clients / rate - now();
    if (left > 0)
        nanosleep(&(struct timespec){(time_t) left, (long) (fmod(left, 1) * 1e9)}, NULL);
}

static void *work(void *argument) {
    Session *s = argument;
    bool counted = strcmp(mode, "push") != 0 && strcmp(mode, "life") != 0;
    int idle = 0;

    for (int i = 0; i < WARM_UP; i++)
        cycle(s);
    s->nclaims = 0;
    pthread_barrier_wait(&ready_barrier);
    pthread_barrier_wait(&start_barrier);
    double start = now();
    while (!atomic_load(&stop)) {
        int n = cycle(s);
        s->jobs += n;
        atomic_fetch_add(&jobs_done, n);
        if (n == 0) {
            s->empty++;
            if (strcmp(mode, "loop") == 0 && s->nids)
                continue;
            if (++idle > 200 || (counted && atomic_load(&jobs_done) >= preload))
                break;
        } else
            idle = 0;
        if (rate > 0)
            keep_rate(start, s->jobs);
        if (now() > deadline || (jobs_limit && atomic_load(&jobs_done) >= jobs_limit))
            break;
    }
    return NULL;
}

/* Cost ------------------------------------------------------------------------------------------------------------ */

static double server_cpu(void) {
    static double tick;
    double total = 0;
    DIR *proc = opendir("/proc");
    struct dirent *entry;

    if (!tick)
        tick = sysconf(_SC_CLK_TCK);
    while ((entry = readdir(proc))) {
        char path[300], line[1024], *rest;
        unsigned long utime, stime;
        long cutime, cstime;
        int parent, pid = atoi(entry->d_name);
        FILE *file;

        if (!isdigit((unsigned char) entry->d_name[0]))
            continue;
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        if (!(file = fopen(path, "r")))
            continue;
        if (fgets(line, sizeof line, file) && (rest = strrchr(line, ')')) &&
            sscanf(rest + 1, " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %ld %ld", &parent, &utime, &stime,
                   &cutime, &cstime) == 5) {
            if (pid == postmaster)
                total += (utime + stime + cutime + cstime) / tick;
            else if (parent == postmaster)
                total += (utime + stime) / tick;
        }
        fclose(file);
    }
    closedir(proc);
    return total;
}

static double own_cpu(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* Busy seconds of the whole machine: what neither server nor client used was somebody else's. */
static double machine_cpu(void) {
    unsigned long user, nice, system, idle, iowait, irq, softirq, steal;
    FILE *file = fopen("/proc/stat", "r");
    int n = fscanf(file, "cpu %lu %lu %lu %lu %lu %lu %lu %lu", &user, &nice, &system, &idle, &iowait, &irq, &softirq,
                   &steal);
    fclose(file);
    return n == 8 ? (user + nice + system + irq + softirq + steal) / (double) sysconf(_SC_CLK_TCK) : 0;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *) a, y = *(const float *) b;
    return x < y ? -1 : x > y;
}

static double quantile(const float *values, long n, double q) {
    float *copy;
    double value;

    if (n == 0)
        return 0;
    copy = malloc(n * sizeof *copy);
    memcpy(copy, values, n * sizeof *copy);
    qsort(copy, n, sizeof *copy, by_value);
    value = copy[(long) fmin(n - 1, floor(q * n))];
    free(copy);
    return value;
}

static double mean(const float *values, long n) {
    double sum = 0;
    for (long i = 0; i < n; i++)
        sum += values[i];
    return n ? sum / n : 0;
}

/* From push to received ------------------------------------------------------------------------------------------- */

static double *sent, *received;
static long nsent, first_sent;

static void note_received(PGresult *result) {
    double at = now();
    for (int row = 0; row < PQntuples(result); row++)
        for (int column = 0; column < PQnfields(result); column++) {
            const char *mark = strstr(PQgetvalue(result, row, column), "\"n\":");
            if (mark) {
                long n = atol(mark + 4) - first_sent;
                if (n >= 0 && n < nsent && received[n] == 0)
                    received[n] = at;
                break;
            }
        }
}

static void *receive(void *argument) {
    Session *s = argument;
    bool listen = strcmp(via, "listen") == 0;
    int next = listen ? need("claim") : need("claim_wait"), ack = need("ack");

    if (listen)
        command(s->conn, statements[need("listen")].sql);
    while (!atomic_load(&stop)) {
        PGresult *result = run(s, next, 1);
        note_received(result);
        remember(s, result);
        PQclear(result);
        if (s->nids) {
            run_quietly(s, ack, 1);
            continue;
        }
        if (listen) {
            struct pollfd socket = {PQsocket(s->conn), POLLIN, 0};
            PGnotify *notify;
            bool woken = false;
            PQconsumeInput(s->conn);
            while ((notify = PQnotifies(s->conn))) {
                PQfreemem(notify);
                woken = true;
            }
            if (!woken)
                poll(&socket, 1, 200);
        }
    }
    return NULL;
}

static void latency(void) {
    Session pusher, receiver;
    pthread_t thread;
    float *took;
    long got = 0;
    int statement = find("push_notify");

    nsent = jobs_limit ? jobs_limit : 200;
    sent = calloc(nsent, sizeof *sent);
    received = calloc(nsent, sizeof *received);
    took = calloc(nsent, sizeof *took);
    if (statement < 0 || strcmp(via, "listen") != 0)
        statement = need("push");
    need(strcmp(via, "listen") == 0 ? "listen" : "claim_wait");
    open_session(&pusher, 0);
    open_session(&receiver, 1);
    run_quietly(&pusher, statement, 1); /* a queue exists from its first job on */
    first_sent = atomic_load(&payload_number);
    pthread_create(&thread, NULL, receive, &receiver);
    usleep(300000);
    for (long i = 0; i < nsent; i++) {
        usleep(15000 + next_random(&pusher) % 20000);
        sent[i] = now();
        run_quietly(&pusher, statement, 1);
    }
    usleep(300000);
    atomic_store(&stop, true);
    run_quietly(&pusher, statement, 1);
    pthread_join(thread, NULL);
    for (long i = 0; i < nsent; i++)
        if (received[i])
            took[got++] = (received[i] - sent[i]) * 1e6;
    printf("{\"jobs\": %ld, \"lost\": %ld, \"p50_us\": %.0f, \"p99_us\": %.0f}\n", got, nsent - got,
           quantile(took, got, 0.5), quantile(took, got, 0.99));
}

/* ----------------------------------------------------------------------------------------------------------------- */

static void fill(long n) {
    Session s;
    open_session(&s, 99);
    for (long left = n; left > 0; left -= preload_batch)
        push(&s, left < preload_batch ? left : preload_batch);
    PQfinish(s.conn);
}

static PGconn **open_waiters(void) {
    PGconn **conns = calloc(waiters, sizeof *conns);
    int statement = waiters ? need("wait_idle") : 0;
    for (int i = 0; i < waiters; i++) {
        Session s;
        const char *values[MAX_PARAMS];
        open_session(&s, 1000 + i);
        prepare(&s, statement, 1, values);
        if (!PQsendQueryPrepared(s.conn, statements[statement].name, statements[statement].nparams, values, NULL, NULL,
                                 0))
            die("%s", PQerrorMessage(s.conn));
        conns[i] = s.conn;
    }
    if (waiters)
        sleep(1);
    return conns;
}

static void read_options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        size_t length = value ? (size_t) (value - argv[i]) : 0;
#define OPTION(name) (length == sizeof name - 1 && strncmp(argv[i], name, length) == 0)
        if (!value)
            die("options are key=value, not %s", argv[i]);
        value++;
        if (OPTION("dsn")) dsn = value;
        else if (OPTION("spec")) spec = value;
        else if (OPTION("mode")) mode = value;
        else if (OPTION("via")) via = value;
        else if (OPTION("push")) push_name = value;
        else if (OPTION("batch")) batch = atoi(value);
        else if (OPTION("clients")) clients = atoi(value);
        else if (OPTION("seconds")) seconds = atof(value);
        else if (OPTION("rate")) rate = atof(value);
        else if (OPTION("jobs")) jobs_limit = atol(value);
        else if (OPTION("preload")) preload = atol(value);
        else if (OPTION("preload_batch")) preload_batch = atol(value);
        else if (OPTION("hold")) hold = atoi(value);
        else if (OPTION("waiters")) waiters = atoi(value);
        else if (OPTION("announce")) announce = atoi(value);
        else if (OPTION("postmaster")) postmaster = atoi(value);
        else die("unknown option %s", argv[i]);
    }
    if (!spec)
        die("spec=FILE is missing");
}

int main(int argc, char **argv) {
    PGconn *control, *holder = NULL;
    Session *sessions;
    pthread_t *threads;
    double start, took, cpu, own, machine, wal, other;
    long jobs = 0, empty = 0, nclaims = 0, tenth;
    float *claims;

    read_options(argc, argv);
    read_statements(spec);
    if (strcmp(mode, "setup") == 0) {
        if (find("setup") >= 0)
            command(connect_to_server(), statements[find("setup")].sql);
        return 0;
    }
    if (strcmp(mode, "fill") == 0) {
        fill(preload);
        return 0;
    }
    if (strcmp(mode, "latency") == 0) {
        latency();
        return 0;
    }
    if (strcmp(mode, "push") == 0)
        need(batch == 1 ? push_name : "push_many");
    else if (strcmp(mode, "loop") == 0)
        need("ack_claim");
    else if (find("open") >= 0 && (batch == 1 || clients > 1))
        exit(NOT_SUPPORTED);
    else
        sized("claim", batch);
    if (find("tick") >= 0)
        preload_batch = batch > 1 ? batch : 100;

    /* Before the filling, so that the pages to be worked on are logged in full by then, not in the measurement. */
    control = connect_to_server();
    command(control, "checkpoint");
    fill(preload + (strcmp(mode, "push") == 0 || strcmp(mode, "life") == 0 ? 0 : (long) WARM_UP * batch * clients));
    command(control, "analyze");
    free(open_waiters());
    if (hold) {
        holder = connect_to_server();
        command(holder, "begin isolation level repeatable read");
        command(holder, "select count(*) from pg_class");
    }
    pthread_barrier_init(&ready_barrier, NULL, clients + 1);
    pthread_barrier_init(&start_barrier, NULL, clients + 1);
    sessions = calloc(clients, sizeof *sessions);
    threads = calloc(clients, sizeof *threads);
    for (int i = 0; i < clients; i++) {
        open_session(&sessions[i], i);
        pthread_create(&threads[i], NULL, work, &sessions[i]);
    }
    pthread_barrier_wait(&ready_barrier);
    wal = scalar(control, "select pg_current_wal_insert_lsn() - '0/0'");
    cpu = server_cpu();
    own = own_cpu();
    machine = machine_cpu();
    if (announce) {
        puts("measuring");
        fflush(stdout);
    }
    start = now();
    deadline = start + seconds;
    pthread_barrier_wait(&start_barrier);
    for (int i = 0; i < clients; i++)
        pthread_join(threads[i], NULL);
    took = now() - start;
    cpu = server_cpu() - cpu;
    own = own_cpu() - own;
    machine = machine_cpu() - machine;
    wal = scalar(control, "select pg_current_wal_insert_lsn() - '0/0'") - wal;

    for (int i = 0; i < clients; i++) {
        jobs += sessions[i].jobs;
        empty += sessions[i].empty;
        nclaims += sessions[i].nclaims;
    }
    claims = malloc((nclaims + 1) * sizeof *claims);
    nclaims = 0;
    for (int i = 0; i < clients; i++) {
        if (sessions[i].nclaims)
            memcpy(claims + nclaims, sessions[i].claim_us, sessions[i].nclaims * sizeof *claims);
        nclaims += sessions[i].nclaims;
    }
    tenth = nclaims / 10;
    other = fmax(0, machine - cpu - own) / (took * sysconf(_SC_NPROCESSORS_ONLN));
    printf("{\"jobs\": %ld, \"empty\": %ld, \"seconds\": %.3f, \"rate\": %.1f, \"cpu_us\": %.3f, \"wal\": %.1f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"first_us\": %.1f, \"last_us\": %.1f, \"first_p50_us\": %.1f, "
           "\"last_p50_us\": %.1f, \"client_us\": %.3f, \"other\": %.3f, \"size\": %.0f}\n",
           jobs, empty, took, jobs / took, cpu * 1e6 / jobs, wal / jobs, quantile(claims, nclaims, 0.5),
           quantile(claims, nclaims, 0.99), mean(claims, tenth), mean(claims + nclaims - tenth, tenth),
           quantile(claims, tenth, 0.5), quantile(claims + nclaims - tenth, tenth, 0.5), own * 1e6 / jobs, other,
           scalar(control, "select pg_database_size(current_database())"));
    return 0;
}
