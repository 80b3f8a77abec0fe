/* LD_PRELOAD library: clocks run faster and waits are shorter by the factor in FAST_CLOCK. FAST_CLOCK is the factor and the
 * value of CLOCK_MONOTONIC, in nanoseconds, at which the fast time starts; processes with the same values agree on the time.
 * CPU-time clocks and file timestamps are unchanged. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static int64_t factor = 1, origin;
static long (*real_syscall)(long, ...);

__attribute__((constructor)) static void begin(void) {
    const char *setting = getenv("FAST_CLOCK");
    long long times = 1, from = 0;
    if (setting && sscanf(setting, "%lld %lld", &times, &from) == 2 && times > 0) {
        factor = times;
        origin = from;
    }
    real_syscall = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
}

static int64_t nanoseconds(const struct timespec *of) { return of->tv_sec * SECOND + of->tv_nsec; }

static struct timespec split(int64_t nanoseconds) {
    return (struct timespec){nanoseconds / SECOND, nanoseconds % SECOND};
}

/* Rounded up, so that no wait ends too early. */
static struct timespec shortened(int64_t wait) { return split((wait + factor - 1) / factor); }

static int64_t now(clockid_t id) {
    struct timespec is;
    real_syscall(SYS_clock_gettime, id, &is);
    return nanoseconds(&is);
}

static int is_fast(clockid_t id) { return id != CLOCK_PROCESS_CPUTIME_ID && id != CLOCK_THREAD_CPUTIME_ID && id >= 0; }

/* How far a clock is ahead of the real one. */
static int64_t ahead(void) { return (now(CLOCK_MONOTONIC) - origin) * (factor - 1); }

int clock_gettime(clockid_t id, struct timespec *is) {
    long outcome = real_syscall(SYS_clock_gettime, id, is);
    if (outcome == 0 && is_fast(id))
        *is = split(nanoseconds(is) + ahead());
    return (int)outcome;
}

int nanosleep(const struct timespec *wait, struct timespec *left) {
    struct timespec real = shortened(nanoseconds(wait));
    (void)left; /* after an interrupting signal; the programs under test read the clock again */
    return (int)real_syscall(SYS_nanosleep, &real, NULL);
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *wait, struct timespec *left) {
    struct timespec until;
    int64_t length = nanoseconds(wait);
    if (flags & TIMER_ABSTIME) {
        clock_gettime(id, &until);
        length -= nanoseconds(&until);
    }
    until = shortened(length > 0 ? length : 0);
    (void)left;
    return real_syscall(SYS_nanosleep, &until, NULL) ? errno : 0;
}

int epoll_wait(int set, struct epoll_event *events, int most, int milliseconds) {
    struct timespec wait = shortened(milliseconds * (SECOND / 1000));
    return (int)real_syscall(SYS_epoll_pwait2, set, events, most, milliseconds < 0 ? NULL : &wait, NULL, 0);
}

int poll(struct pollfd *files, nfds_t count, int milliseconds) {
    struct timespec wait = shortened(milliseconds * (SECOND / 1000));
    return (int)real_syscall(SYS_ppoll, files, count, milliseconds < 0 ? NULL : &wait, NULL, 0);
}

/* Rust's locks and channels call futex through this function, with absolute times of the monotonic or the wall clock. */
long syscall(long number, ...) {
    long with[6];
    va_list list;
    va_start(list, number);
    for (int at = 0; at < 6; at++)
        with[at] = va_arg(list, long);
    va_end(list);
    struct timespec until;
    int operation = (int)with[1] & FUTEX_CMD_MASK;
    if (number == SYS_futex && with[3] && operation == FUTEX_WAIT) {
        until = shortened(nanoseconds((struct timespec *)with[3]));
        with[3] = (long)&until;
    } else if (number == SYS_futex && with[3] && operation == FUTEX_WAIT_BITSET) {
        int64_t real = now((with[1] & FUTEX_CLOCK_REALTIME) ? CLOCK_REALTIME : CLOCK_MONOTONIC);
        int64_t wait = nanoseconds((struct timespec *)with[3]) - real - ahead();
        until = shortened(wait > 0 ? wait : 0);
        until = split(nanoseconds(&until) + real);
        with[3] = (long)&until;
    }
    return real_syscall(number, with[0], with[1], with[2], with[3], with[4], with[5]);
}
