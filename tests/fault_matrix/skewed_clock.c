/* LD_PRELOAD library: the wall clock is ahead by the seconds in the file that SKEWED_CLOCK names, which may change at any time. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *ahead;

__attribute__((constructor)) static void map(void) {
    const char *path = getenv("SKEWED_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    void *at = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    if (at != MAP_FAILED)
        ahead = at;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int outcome = (int)syscall(SYS_clock_gettime, id, now);
    if (outcome == 0 && id == CLOCK_REALTIME && ahead)
        now->tv_sec += *ahead;
    return outcome;
}
