// Preloaded into the builds of scripts/release: gives build scripts the same random numbers every time, and leaves those of all
// other programs alone. The parser generator of promql-parser writes what it finds in the order of a randomly seeded hash map.
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

ssize_t getrandom(void *buffer, size_t length, unsigned flags) {
    if (strcmp(program_invocation_short_name, "build-script-build") != 0)
        return syscall(SYS_getrandom, buffer, length, flags);
    memset(buffer, 0, length);
    return (ssize_t)length;
}
