/* The load of rawload.c for beanstalkd, whose protocol is lines of text.
 *
 *   beanload PORT push  N WINDOW         one put a job, WINDOW unanswered on one connection
 *   beanload PORT drain N COUNT CONNS    on each of CONNS connections: COUNT reserves at once, then
 *         COUNT deletes at once, and so on
 *
 * A job's body is its number in ten digits and 100 letters. "ok" in the one line of JSON written
 * at the end says that every number came once.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { DIGITS = 10, BODY_BYTES = DIGITS + 100, ROOM = 1 << 20, MOST_CONNS = 64 };

struct line {
    int fd;
    char out[ROOM], in[ROOM];
    size_t out_n, in_n, in_at;
    long asked;              /* answers to come */
    unsigned long long *ids; /* reserved, to be deleted */
    long n_ids;
};

static void fail(const char *what)
{
    fprintf(stderr, "beanload: %s\n", what);
    exit(1);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct line *join(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    int on = 1;
    struct line *line = calloc(1, sizeof *line);
    if (!line)
        fail("out of memory");
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    line->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (line->fd < 0 || connect(line->fd, (struct sockaddr *)&to, sizeof to))
        fail("cannot connect");
    setsockopt(line->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return line;
}

static void say(struct line *line, const char *text, size_t n)
{
    if (line->out_n + n > ROOM)
        fail("the window is too large");
    memcpy(line->out + line->out_n, text, n);
    line->out_n += n;
}

static void flush(struct line *line)
{
    for (size_t at = 0; at < line->out_n;) {
        ssize_t n = write(line->fd, line->out + at, line->out_n - at);
        if (n <= 0)
            fail("the server closed the connection");
        at += (size_t)n;
    }
    line->out_n = 0;
}

static void more(struct line *line)
{
    memmove(line->in, line->in + line->in_at, line->in_n - line->in_at);
    line->in_n -= line->in_at;
    line->in_at = 0;
    ssize_t n = read(line->fd, line->in + line->in_n, ROOM - line->in_n);
    if (n <= 0)
        fail("the server closed the connection");
    line->in_n += (size_t)n;
}

/* The next n bytes and the end of line after them; with n = 0 one whole line. */
static char *heard(struct line *line, size_t n)
{
    for (;;) {
        char *from = line->in + line->in_at;
        size_t have = line->in_n - line->in_at;
        char *end = n ? (have >= n + 2 ? from + n : NULL) : memmem(from, have, "\r\n", 2);
        if (end) {
            *end = 0;
            line->in_at = (size_t)(end + 2 - line->in);
            return from;
        }
        more(line);
    }
}

static void push(int port, long n, long window)
{
    struct line *line = join(port);
    long sent = 0, done = 0;
    while (done < n) {
        for (; sent < n && sent - done < window; sent++) {
            char text[BODY_BYTES + 64];
            int k = sprintf(text, "put 0 0 60 %d\r\n%0*ld", BODY_BYTES, DIGITS, sent);
            memset(text + k, 'x', BODY_BYTES - DIGITS);
            memcpy(text + k + BODY_BYTES - DIGITS, "\r\n", 2);
            say(line, text, (size_t)k + BODY_BYTES - DIGITS + 2);
        }
        flush(line);
        do {
            if (strncmp(heard(line, 0), "INSERTED", 8))
                fail("a put was refused");
            done++;
        } while (memmem(line->in + line->in_at, line->in_n - line->in_at, "\r\n", 2));
    }
}

static void ask(struct line *line, long n)
{
    for (long i = 0; i < n; i++)
        say(line, "reserve-with-timeout 5\r\n", 24);
    line->asked = n;
    flush(line);
}

static bool drain(int port, long n, long count, int conns)
{
    struct line *lines[MOST_CONNS];
    char *seen = calloc((size_t)n, 1);
    long left = n, got = 0;
    bool ok = true;
    if (!seen || conns > MOST_CONNS)
        fail("out of room");
    for (int c = 0; c < conns; c++) {
        lines[c] = join(port);
        lines[c]->ids = malloc((size_t)count * sizeof *lines[c]->ids);
    }
    for (bool busy = true; busy;) {
        busy = false;
        for (int c = 0; c < conns; c++) {
            struct line *line = lines[c];
            if (line->asked) {
                for (; line->asked; line->asked--) {
                    size_t bytes;
                    if (sscanf(heard(line, 0), "RESERVED %llu %zu", &line->ids[line->n_ids++], &bytes) != 2)
                        fail("nothing was reserved");
                    char *body = heard(line, bytes);
                    body[DIGITS] = 0;
                    long i = atol(body);
                    ok = ok && i >= 0 && i < n && !seen[i];
                    if (i >= 0 && i < n)
                        seen[i] = 1;
                }
                for (long i = 0; i < line->n_ids; i++) {
                    char text[40];
                    say(line, text, (size_t)sprintf(text, "delete %llu\r\n", line->ids[i]));
                }
                flush(line);
                busy = true;
            } else if (line->n_ids) {
                for (; line->n_ids; line->n_ids--, got++)
                    ok = !strcmp(heard(line, 0), "DELETED") && ok;
                busy = true;
            }
            if (!line->asked && !line->n_ids && left) {
                long take = left < count ? left : count;
                left -= take;
                ask(line, take);
                busy = true;
            }
        }
    }
    return ok && got == n;
}

int main(int argc, char **argv)
{
    if (argc < 5)
        fail("PORT push N WINDOW, or PORT drain N COUNT CONNS");
    int port = atoi(argv[1]);
    long n = atol(argv[3]), size = atol(argv[4]);
    bool ok = true;
    double began = now_s();
    if (!strcmp(argv[2], "push"))
        push(port, n, size);
    else
        ok = drain(port, n, size, argc > 5 ? atoi(argv[5]) : 1);
    double seconds = now_s() - began;
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("{\"ok\": %s, \"rate\": %.0f, \"client_cpu_us\": %.2f}\n", ok ? "true" : "false", (double)n / seconds,
           ((double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e6
            + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec)) / (double)n);
    return 0;
}
