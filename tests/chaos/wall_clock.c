/* SPDX-License-Identifier: Apache-2.0
 *
 * The time of day of the processes that are started with this library, as ACSTOR_CHAOS_CLOCK says:
 * a file whose first eight bytes are by how many nanoseconds it is wrong.  The file is mapped, so
 * that a jump is seen at once.  Clocks that are never set, and all that waits, stay as they are.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static const int64_t zero;
static const volatile int64_t *off_ns = &zero;
static int (*real_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("ACSTOR_CHAOS_CLOCK");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *page;

	real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	if (fd < 0)
		return;
	page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
	if (page != MAP_FAILED)
		off_ns = page;
	close(fd);
}

int clock_gettime(clockid_t which, struct timespec *at)
{
	int64_t off = *off_ns;
	int failed;

	if (!real_gettime)
		begin();
	failed = real_gettime(which, at);
	if (failed || (which != CLOCK_REALTIME && which != CLOCK_REALTIME_COARSE))
		return failed;
	at->tv_sec += off / SECOND;
	at->tv_nsec += off % SECOND;
	if (at->tv_nsec < 0) {
		at->tv_nsec += SECOND;
		at->tv_sec--;
	} else if (at->tv_nsec >= SECOND) {
		at->tv_nsec -= SECOND;
		at->tv_sec++;
	}
	return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
	struct timespec now;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	at->tv_sec = now.tv_sec;
	at->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *at)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (at)
		*at = now.tv_sec;
	return now.tv_sec;
}
