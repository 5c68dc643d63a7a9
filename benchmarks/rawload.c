/* A load client whose own cost is small, so that the server is what gets measured.
 *
 *   rawload PORT push  N WINDOW              one PUSH a job, WINDOW unanswered on one connection
 *   rawload PORT pushb N BATCH DEPTH         PUSHB of BATCH jobs, DEPTH unanswered
 *   rawload PORT seq   N [durable]           one PUSH at a time, after 200 that are not timed
 *   rawload PORT drain N COUNT CONNS [results]
 *         on each of CONNS connections: PULLB of COUNT jobs under a lease, then ACKB of them,
 *         and so on; with "results" each job is acknowledged with a null result
 *   rawload PORT idle  N                     a PULL waits, a PUSH on another connection serves it: until
 *         the job is here, N times, after 200 that are not timed
 *   rawload PORT late  N DELAY_MS            N jobs due 5 ms apart, pulled by a PULL that waits: how long
 *         after its time (the job's runAt) each is here
 *
 * A frame is a big-endian 32-bit length and one MessagePack map. A job's data is
 * {"i": number, "text": 100 letters}. Each job drained is ticked off by its number:
 * "ok" in the one line of JSON written at the end says that every number came once.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_BYTES = 100, SEND_BYTES = 60000, READ_BYTES = 1 << 18, SEQ_WARMUP = 200, STUCK_MS = 5000,
       EMPTY_PULLS = 100000 };

static void fail(const char *what)
{
    fprintf(stderr, "rawload: %s\n", what);
    exit(1);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- writing ------------------------------------------------------------------------------ */

struct bytes {
    unsigned char *at;
    size_t used, room;
};

static unsigned char *grow(struct bytes *b, size_t more)
{
    if (b->used + more > b->room) {
        b->room = 2 * (b->used + more);
        b->at = realloc(b->at, b->room);
        if (!b->at)
            fail("out of memory");
    }
    b->used += more;
    return b->at + b->used - more;
}

static void put_bytes(struct bytes *b, const void *from, size_t n)
{
    memcpy(grow(b, n), from, n);
}

/* The header of a MessagePack type with a fixed form below `fix_limit` and 8, 16 and 32-bit forms. */
static void put_head(struct bytes *b, uint32_t n, unsigned fix, uint32_t fix_limit, int form8, unsigned form16)
{
    unsigned char h[5];
    size_t k;
    if (n < fix_limit) {
        h[0] = (unsigned char)(fix | n);
        k = 1;
    } else if (form8 >= 0 && n < 0x100) {
        h[0] = (unsigned char)form8;
        h[1] = (unsigned char)n;
        k = 2;
    } else if (n < 0x10000) {
        h[0] = (unsigned char)form16;
        h[1] = (unsigned char)(n >> 8);
        h[2] = (unsigned char)n;
        k = 3;
    } else {
        uint32_t be = htonl(n);
        h[0] = (unsigned char)(form16 + 1);
        memcpy(h + 1, &be, 4);
        k = 5;
    }
    put_bytes(b, h, k);
}

static void put_map(struct bytes *b, uint32_t n) { put_head(b, n, 0x80, 16, -1, 0xde); }
static void put_array(struct bytes *b, uint32_t n) { put_head(b, n, 0x90, 16, -1, 0xdc); }
static void put_uint(struct bytes *b, uint32_t n) { put_head(b, n, 0x00, 128, 0xcc, 0xcd); }
static void put_true(struct bytes *b) { *grow(b, 1) = 0xc3; }
static void put_nil(struct bytes *b) { *grow(b, 1) = 0xc0; }

static void put_text(struct bytes *b, const char *s, size_t n)
{
    put_head(b, (uint32_t)n, 0xa0, 32, 0xd9, 0xda);
    put_bytes(b, s, n);
}

static void put_word(struct bytes *b, const char *s) { put_text(b, s, strlen(s)); }

static void put_pair(struct bytes *b, const char *key, const char *value)
{
    put_word(b, key);
    put_word(b, value);
}

static void put_number_text(struct bytes *b, const char *key, long number)
{
    char text[24];
    snprintf(text, sizeof text, "%ld", number);
    put_pair(b, key, text);
}

static size_t frame_begin(struct bytes *b, uint32_t fields, const char *command, const char *queue)
{
    size_t start = b->used;
    grow(b, 4);
    put_map(b, fields);
    put_pair(b, "cmd", command);
    if (queue)
        put_pair(b, "queue", queue);
    return start;
}

static void frame_end(struct bytes *b, size_t start, long request)
{
    uint32_t be;
    put_number_text(b, "reqId", request);
    be = htonl((uint32_t)(b->used - start - 4));
    memcpy(b->at + start, &be, 4);
}

/* ---- reading ------------------------------------------------------------------------------ */

static uint32_t be_uint(const unsigned char *p, int n)
{
    uint32_t v = 0;
    while (n--)
        v = v << 8 | *p++;
    return v;
}

/* What a value's first bytes say: how long the header is, how many bytes of body and how many
 * values follow. */
struct head {
    size_t header, body;
    uint32_t items;
};

static struct head head_of(const unsigned char *p)
{
    static const unsigned char width[] = { 4, 8, 1, 2, 4, 8, 1, 2, 4, 8 };    /* ca..d3 */
    unsigned t = *p;
    struct head h = { 1, 0, 0 };
    if (t < 0x80 || t >= 0xe0)
        return h;
    if (t < 0x90)
        h.items = 2 * (t & 15);
    else if (t < 0xa0)
        h.items = t & 15;
    else if (t < 0xc0)
        h.body = t & 31;
    else if (t >= 0xc4 && t <= 0xc6) {
        int n = 1 << (t - 0xc4);
        h.header += (size_t)n;
        h.body = be_uint(p + 1, n);
    } else if (t >= 0xc7 && t <= 0xc9) {
        int n = 1 << (t - 0xc7);
        h.header += (size_t)n + 1;
        h.body = be_uint(p + 1, n);
    } else if (t >= 0xca && t <= 0xd3)
        h.body = width[t - 0xca];
    else if (t >= 0xd4 && t <= 0xd8)
        h.body = 1 + ((size_t)1 << (t - 0xd4));
    else if (t >= 0xd9 && t <= 0xdb) {
        int n = 1 << (t - 0xd9);
        h.header += (size_t)n;
        h.body = be_uint(p + 1, n);
    } else if (t >= 0xdc) {
        int n = t & 1 ? 4 : 2;
        h.header += (size_t)n;
        h.items = be_uint(p + 1, n) * (t >= 0xde ? 2 : 1);
    }
    return h;
}

static const unsigned char *after(const unsigned char *p)
{
    size_t left = 1;
    while (left--) {
        struct head h = head_of(p);
        p += h.header + h.body;
        left += h.items;
    }
    return p;
}

/* The number of entries of a map (pairs) or an array; `*p` moves to the first. */
static uint32_t enter(const unsigned char **p)
{
    struct head h = head_of(*p);
    bool map = (**p & 0xf0) == 0x80 || **p >= 0xde;
    *p += h.header;
    return map ? h.items / 2 : h.items;
}

static bool same_text(const unsigned char *p, const char *word)
{
    struct head h = head_of(p);
    return h.body == strlen(word) && !memcmp(p + h.header, word, h.body);
}

static const unsigned char *field(const unsigned char *map, const char *key)
{
    uint32_t n = enter(&map);
    while (n--) {
        bool found = same_text(map, key);
        map = after(map);
        if (found)
            return map;
        map = after(map);
    }
    return NULL;
}

static long whole_number(const unsigned char *p)
{
    unsigned t = *p++;
    if (t < 0x80)
        return t;
    if (t >= 0xcc && t <= 0xce)
        return be_uint(p, 1 << (t - 0xcc));
    if (t == 0xcf)
        return (long)((uint64_t)be_uint(p, 4) << 32 | be_uint(p + 4, 4));
    if (t == 0xcb) {
        uint64_t bits = (uint64_t)be_uint(p, 4) << 32 | be_uint(p + 4, 4);
        double d;
        memcpy(&d, &bits, 8);
        return (long)d;
    }
    return -1;
}

/* ---- connections -------------------------------------------------------------------------- */

struct link {
    int fd;
    struct bytes in;
    size_t eaten;
    uint32_t unconfirmed;       /* jobs in the ACKB that is under way */
};

static void dial(struct link *l, int port)
{
    struct sockaddr_in where = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    int on = 1;
    memset(l, 0, sizeof *l);
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    l->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (l->fd < 0 || connect(l->fd, (struct sockaddr *)&where, sizeof where))
        fail("cannot connect");
    setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static void send_all(struct link *l, struct bytes *out)
{
    size_t sent = 0;
    while (sent < out->used) {
        ssize_t n = write(l->fd, out->at + sent, out->used - sent);
        if (n < 0)
            fail("cannot write");
        sent += (size_t)n;
    }
    out->used = 0;
}

/* One read. Frames handed out before are gone after it. */
static void receive(struct link *l)
{
    ssize_t n;
    if (l->eaten) {
        l->in.used -= l->eaten;
        memmove(l->in.at, l->in.at + l->eaten, l->in.used);
        l->eaten = 0;
    }
    grow(&l->in, READ_BYTES);
    l->in.used -= READ_BYTES;
    n = read(l->fd, l->in.at + l->in.used, l->in.room - l->in.used);
    if (n <= 0)
        fail("the server closed the connection");
    l->in.used += (size_t)n;
}

/* The next whole reply that is here, checked to be an "ok"; NULL when none is. */
static const unsigned char *reply(struct link *l)
{
    size_t here = l->in.used - l->eaten, n;
    const unsigned char *p = l->in.at + l->eaten, *ok, *error;
    if (here < 4 || here - 4 < (n = be_uint(p, 4)))
        return NULL;
    l->eaten += 4 + n;
    p += 4;
    ok = field(p, "ok");
    if (!ok || *ok != 0xc3) {
        error = field(p, "error");
        if (error)
            fprintf(stderr, "%.*s\n", (int)head_of(error).body, (const char *)error + head_of(error).header);
        fail("the server refused a command");
    }
    return p;
}

static const unsigned char *wait_reply(struct link *l)
{
    const unsigned char *p;
    while (!(p = reply(l)))
        receive(l);
    return p;
}

static bool readable(struct link *l)
{
    struct pollfd p = { .fd = l->fd, .events = POLLIN };
    return poll(&p, 1, 0) > 0;
}

/* ---- workloads ---------------------------------------------------------------------------- */

static char text[TEXT_BYTES];
static struct bytes out;

static void put_job(struct bytes *b, long i)
{
    put_pair(b, "name", "job");
    put_word(b, "data");
    put_map(b, 2);
    put_word(b, "i");
    put_uint(b, (uint32_t)i);
    put_word(b, "text");
    put_text(b, text, sizeof text);
}

static void put_push(long i, bool durable)
{
    size_t at = frame_begin(&out, durable ? 6 : 5, "PUSH", "bench");
    put_job(&out, i);
    if (durable) {
        put_word(&out, "durable");
        put_true(&out);
    }
    frame_end(&out, at, i);
}

static double run_push(int port, long n, long window)
{
    struct link l;
    long sent = 0, answered = 0;
    double start;
    dial(&l, port);
    start = now_s();
    while (answered < n) {
        while (sent < n && sent - answered < window && out.used <= SEND_BYTES)
            put_push(sent++, false);
        if (out.used)
            send_all(&l, &out);
        if (sent < n && sent - answered < window && !readable(&l))
            continue;
        receive(&l);
        while (reply(&l))
            answered++;
    }
    return now_s() - start;
}

static double run_pushb(int port, long n, long batch, long depth, bool *ok)
{
    struct link l;
    long sent = 0, answered = 0, i;
    double start;
    dial(&l, port);
    start = now_s();
    while (answered < n) {
        while (sent < n && sent - answered < batch * depth) {
            long k = n - sent < batch ? n - sent : batch;
            size_t at = frame_begin(&out, 4, "PUSHB", "bench");
            put_word(&out, "jobs");
            put_array(&out, (uint32_t)k);
            for (i = sent; i < sent + k; i++) {
                put_map(&out, 2);
                put_job(&out, i);
            }
            frame_end(&out, at, sent);
            sent += k;
            send_all(&l, &out);
        }
        const unsigned char *ids = field(wait_reply(&l), "ids");
        if (!ids)
            fail("a reply without ids");
        answered += enter(&ids);
    }
    *ok = answered == n;
    return now_s() - start;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void percentiles(double *took, long n, double *p50_us, double *p99_us)
{
    qsort(took, (size_t)n, sizeof *took, by_size);
    *p50_us = 1e6 * took[n / 2];
    *p99_us = 1e6 * took[n * 99 / 100];
}

static double run_seq(int port, long n, bool durable, double *p50_us, double *p99_us)
{
    struct link l;
    double *took = calloc((size_t)n, sizeof *took), start = 0, before;
    long i;
    if (!took)
        fail("out of memory");
    dial(&l, port);
    for (i = -SEQ_WARMUP; i < n; i++) {
        if (i == 0)
            start = now_s();
        before = now_s();
        put_push(i < 0 ? n - i : i, durable);
        send_all(&l, &out);
        wait_reply(&l);
        if (i >= 0)
            took[i] = now_s() - before;
    }
    start = now_s() - start;
    percentiles(took, n, p50_us, p99_us);
    return start;
}

/* A PULL that waits for at most 10 s. It is at the server when the Ping behind it is answered. */
static void wait_for_job(struct link *l, long request, bool *asked)
{
    size_t at = frame_begin(&out, 5, "PULL", "bench");
    put_word(&out, "timeout");
    put_uint(&out, 10000);
    put_pair(&out, "owner", "rawload");
    frame_end(&out, at, request);
    if (asked) {
        at = frame_begin(&out, 2, "Ping", NULL);
        frame_end(&out, at, request);
    }
    send_all(l, &out);
    if (asked)
        *asked = field(wait_reply(l), "job") == NULL;
}

static const unsigned char *job_of(struct link *l)
{
    const unsigned char *job = field(wait_reply(l), "job");
    if (!job || *job == 0xc0)
        fail("a PULL that waited came back without a job");
    return job;
}

static double run_idle(int port, long n, bool *ok, double *p50_us, double *p99_us)
{
    struct link puller, pusher;
    double *took = calloc((size_t)n, sizeof *took), start = 0, before;
    long i;
    bool asked;
    if (!took)
        fail("out of memory");
    dial(&puller, port);
    dial(&pusher, port);
    for (i = -SEQ_WARMUP; i < n; i++) {
        if (i == 0)
            start = now_s();
        wait_for_job(&puller, i, &asked);
        *ok = *ok && asked;
        put_push(i < 0 ? n - i : i, false);
        before = now_s();
        send_all(&pusher, &out);
        job_of(&puller);
        if (i >= 0)
            took[i] = now_s() - before;
        wait_reply(&pusher);
    }
    start = now_s() - start;
    percentiles(took, n, p50_us, p99_us);
    return start;
}

static double run_late(int port, long n, long delay_ms, double *p50_us, double *p99_us)
{
    struct link puller, pusher;
    double *took = calloc((size_t)n, sizeof *took), start;
    long i;
    if (!took)
        fail("out of memory");
    dial(&puller, port);
    dial(&pusher, port);
    start = now_s();
    for (i = 0; i < n; i++) {
        size_t at = frame_begin(&out, 6, "PUSH", "bench");
        put_job(&out, i);
        put_word(&out, "delay");
        put_uint(&out, (uint32_t)(delay_ms + 5 * i));
        frame_end(&out, at, i);
    }
    send_all(&pusher, &out);
    for (i = 0; i < n; i++)
        wait_reply(&pusher);
    for (i = 0; i < n; i++) {
        struct timespec t;
        const unsigned char *due;
        wait_for_job(&puller, i, NULL);
        due = field(job_of(&puller), "runAt");
        clock_gettime(CLOCK_REALTIME, &t);
        if (!due)
            fail("a job without runAt");
        took[i] = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec - 1e-3 * (double)whole_number(due);
    }
    start = now_s() - start;
    percentiles(took, n, p50_us, p99_us);
    return start;
}

static void ask_for_jobs(struct link *l, int count, long request)
{
    size_t at = frame_begin(&out, 6, "PULLB", "bench");
    put_word(&out, "count");
    put_uint(&out, (uint32_t)count);
    put_word(&out, "timeout");
    put_uint(&out, 0);
    put_pair(&out, "owner", "rawload");
    frame_end(&out, at, request);
    send_all(l, &out);
}

/* Tick off the jobs of a PULLB reply; their ids are copied to `ids` as they came. */
static bool tick_off(const unsigned char *jobs, uint32_t n, unsigned char *seen, long total, struct bytes *ids)
{
    bool ok = true;
    while (n--) {
        const unsigned char *p = jobs, *value;
        uint32_t fields = enter(&p);
        while (fields--) {
            value = after(p);
            if (same_text(p, "id"))
                put_bytes(ids, value, (size_t)(after(value) - value));
            else if (same_text(p, "data")) {
                const unsigned char *number = field(value, "i");
                long i = number ? whole_number(number) : -1;
                if (i < 0 || i >= total || seen[i])
                    ok = false;
                else
                    seen[i] = 1;
            }
            p = after(value);
        }
        jobs = p;
    }
    return ok;
}

static double run_drain(int port, long n, int count, int conns, bool results, bool *ok)
{
    struct link *links = calloc((size_t)conns, sizeof *links);
    struct pollfd *polled = calloc((size_t)conns, sizeof *polled);
    unsigned char *seen = calloc((size_t)n, 1);
    struct bytes ids = { 0 };
    long pulled = 0, confirmed = 0, empty = 0;
    double start;
    int c;
    if (!links || !polled || !seen)
        fail("out of memory");
    *ok = true;
    start = now_s();
    for (c = 0; c < conns; c++) {
        dial(&links[c], port);
        polled[c] = (struct pollfd){ .fd = links[c].fd, .events = POLLIN };
        ask_for_jobs(&links[c], count, c);
    }
    while (confirmed < n) {
        if (poll(polled, (nfds_t)conns, STUCK_MS) <= 0)
            fail("the server has not answered for 5 s");
        for (c = 0; c < conns; c++) {
            struct link *l = &links[c];
            const unsigned char *p;
            if (!polled[c].revents)
                continue;
            receive(l);
            while ((p = reply(l))) {
                const unsigned char *jobs = field(p, "jobs"), *tokens = field(p, "tokens");
                uint32_t k, with_tokens;
                size_t at;
                if (!jobs) {                        /* the answer to an ACKB */
                    confirmed += l->unconfirmed;
                    l->unconfirmed = 0;
                    ask_for_jobs(l, count, c);
                    continue;
                }
                k = enter(&jobs);
                if (!k) {
                    if (pulled >= n)
                        polled[c].events = 0;       /* the others have the rest */
                    else if (++empty > EMPTY_PULLS)
                        fail("jobs are missing");
                    else
                        ask_for_jobs(l, count, c);
                    continue;
                }
                with_tokens = tokens && *tokens != 0xc0;
                ids.used = 0;
                if (!tick_off(jobs, k, seen, n, &ids))
                    *ok = false;
                pulled += k;
                l->unconfirmed = k;
                at = frame_begin(&out, 3 + with_tokens + results, "ACKB", NULL);
                put_word(&out, "ids");
                put_array(&out, k);
                put_bytes(&out, ids.at, ids.used);
                if (results) {
                    put_word(&out, "results");
                    put_array(&out, k);
                    for (uint32_t i = 0; i < k; i++)
                        put_nil(&out);
                }
                if (with_tokens) {
                    put_word(&out, "tokens");
                    put_bytes(&out, tokens, (size_t)(after(tokens) - tokens));
                }
                frame_end(&out, at, c);
                send_all(l, &out);
            }
        }
    }
    *ok = *ok && pulled == n;
    return now_s() - start;
}

int main(int argc, char **argv)
{
    const char *what = argc > 3 ? argv[2] : "";
    int port = argc > 3 ? atoi(argv[1]) : 0;
    long n = argc > 3 ? atol(argv[3]) : 0;
    double seconds, p50_us = 0, p99_us = 0;
    struct rusage used;
    bool ok = true;

    memset(text, 'x', sizeof text);
    if (!strcmp(what, "push") && argc == 5)
        seconds = run_push(port, n, atol(argv[4]));
    else if (!strcmp(what, "pushb") && argc == 6)
        seconds = run_pushb(port, n, atol(argv[4]), atol(argv[5]), &ok);
    else if (!strcmp(what, "seq") && (argc == 4 || argc == 5))
        seconds = run_seq(port, n, argc == 5, &p50_us, &p99_us);
    else if (!strcmp(what, "drain") && (argc == 6 || argc == 7))
        seconds = run_drain(port, n, atoi(argv[4]), atoi(argv[5]), argc == 7, &ok);
    else if (!strcmp(what, "idle") && argc == 4)
        seconds = run_idle(port, n, &ok, &p50_us, &p99_us);
    else if (!strcmp(what, "late") && argc == 5)
        seconds = run_late(port, n, atol(argv[4]), &p50_us, &p99_us);
    else {
        fprintf(stderr, "usage: rawload PORT push|pushb|seq|drain|idle|late N ... (see the head of the source)\n");
        return 2;
    }
    getrusage(RUSAGE_SELF, &used);
    printf("{\"ok\": %s, \"rate\": %.0f, \"client_cpu_us\": %.2f", ok ? "true" : "false", (double)n / seconds,
           ((double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e6
            + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec)) / (double)n);
    if (p50_us > 0)
        printf(", \"p50_us\": %.1f, \"p99_us\": %.1f", p50_us, p99_us);
    printf("}\n");
    return 0;
}
