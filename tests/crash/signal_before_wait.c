/* Preloaded: when the file named by SIGNAL_FILE is there, a SIGTERM comes in the last moment before a wait.
 *
 * The handler in C has run when the wait begins, so the wait is not interrupted: what Python does about
 * the signal has to come from what the handler left behind.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

int epoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout)
{
    static int (*real)(int, struct epoll_event *, int, int);
    const char *file = getenv("SIGNAL_FILE");

    if (!real)
        real = (int (*)(int, struct epoll_event *, int, int))dlsym(RTLD_NEXT, "epoll_wait");
    if (timeout && file && unlink(file) == 0)
        kill(getpid(), SIGTERM);
    return real(epfd, events, maxevents, timeout);
}
