/*
 * clock.c: preloaded into a server, lies to it about the time of day by as many seconds as the file in OJS_CLOCK_FILE
 * says (a number of 8 bytes), and not about any other clock. libfaketime would do, but for processes that PostgreSQL
 * before 16 starts in a signal handler: these go on with the true time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static const volatile int64_t *seconds;
static int (*true_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void
begin(void)
{
    const char *name = getenv("OJS_CLOCK_FILE");
    int file = name != NULL ? open(name, O_RDONLY) : -1;
    void *at = file >= 0 ? mmap(NULL, sizeof *seconds, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    true_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (at != MAP_FAILED)
        seconds = at;
}

int
clock_gettime(clockid_t clock, struct timespec *at)
{
    int result = true_clock(clock, at);
    if (result == 0 && clock == CLOCK_REALTIME && seconds != NULL)
        at->tv_sec += *seconds;
    return result;
}

int
gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t
time(time_t *at)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL)
        *at = now.tv_sec;
    return now.tv_sec;
}
