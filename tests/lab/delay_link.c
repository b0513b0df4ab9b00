// SPDX-License-Identifier: Apache-2.0
// A link with delay, jitter and loss between two network namespaces, for kernels without netem.
//
//     delay_link NETNS DEVICE NETNS DEVICE DELAY_US JITTER_US LOSS_PPM SEED
//
// Makes a TAP device in each namespace and copies frames between them until it is killed; it prints
// a line when both devices exist. Each direction has a reader, which stamps each frame with its time
// of departure, and a writer, which waits until then. Frames stay in order. A queue of QUEUE_BYTES
// drops further frames, like a router's.
//
// Without loss the devices take packets of up to 64 KiB (TSO), so that a gigabit costs few
// processor cycles; with loss they take single frames, so that one loss is one frame.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define FRAME_BYTES (65536 + 128)
#define QUEUE_BYTES (64u << 20)
#define NS_PER_S 1000000000LL
#define SPIN_NS 200000 // a timer of a virtual machine may fire so late

struct frame {
    struct frame *next;
    int64_t due_ns;
    ssize_t length;
    char bytes[];
};

struct direction {
    int from, to;
    int64_t delay_ns, jitter_ns;
    uint32_t loss_ppm;
    uint64_t random;
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct frame *first, **last;
    size_t queued_bytes;
};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "delay_link: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

// xorshift64*: the same seed loses the same frames.
static uint32_t next_random(struct direction *way)
{
    way->random ^= way->random >> 12;
    way->random ^= way->random << 25;
    way->random ^= way->random >> 27;
    return (uint32_t)((way->random * 2685821657736338717ULL) >> 32);
}

static int open_tap(const char *netns, const char *device, int has_offload)
{
    int ns = open(netns, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET) < 0)
        die(netns);
    close(ns);
    int tap = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    if (tap < 0)
        die("/dev/net/tun");
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    strncpy(request.ifr_name, device, IFNAMSIZ - 1);
    if (ioctl(tap, TUNSETIFF, &request) < 0)
        die(device);
    unsigned offload = has_offload ? TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 : 0;
    if (ioctl(tap, TUNSETOFFLOAD, offload) < 0)
        die("TUNSETOFFLOAD");
    return tap;
}

static _Noreturn void *read_frames(void *argument)
{
    struct direction *way = argument;
    int64_t last_due_ns = 0;
    char *buffer = malloc(FRAME_BYTES);
    for (;;) {
        ssize_t length = read(way->from, buffer, FRAME_BYTES);
        if (length <= 0) {
            if (errno == EINTR || errno == EIO) // EIO: the device is down
                continue;
            die("read");
        }
        if (way->loss_ppm && next_random(way) % 1000000 < way->loss_ppm)
            continue;
        int64_t due_ns = now_ns() + way->delay_ns;
        if (way->jitter_ns)
            due_ns += (int64_t)(next_random(way) % (2 * way->jitter_ns + 1)) - way->jitter_ns;
        if (due_ns < last_due_ns)
            due_ns = last_due_ns;
        last_due_ns = due_ns;
        struct frame *frame = malloc(sizeof *frame + length);
        if (!frame)
            die("malloc");
        frame->next = NULL, frame->due_ns = due_ns, frame->length = length;
        memcpy(frame->bytes, buffer, length);
        pthread_mutex_lock(&way->lock);
        if (way->queued_bytes + length > QUEUE_BYTES) {
            pthread_mutex_unlock(&way->lock);
            free(frame);
            continue;
        }
        way->queued_bytes += length;
        *way->last = frame;
        way->last = &frame->next;
        pthread_cond_signal(&way->filled);
        pthread_mutex_unlock(&way->lock);
    }
}

static _Noreturn void *write_frames(void *argument)
{
    struct direction *way = argument;
    for (;;) {
        pthread_mutex_lock(&way->lock);
        while (!way->first)
            pthread_cond_wait(&way->filled, &way->lock);
        struct frame *frame = way->first;
        way->first = frame->next;
        if (!way->first)
            way->last = &way->first;
        way->queued_bytes -= frame->length;
        int is_alone = !way->first; // one of many would keep a processor busy
        pthread_mutex_unlock(&way->lock);
        int64_t wake_ns = frame->due_ns - (is_alone ? SPIN_NS : 0);
        struct timespec wake = {wake_ns / NS_PER_S, wake_ns % NS_PER_S};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL) == EINTR)
            ;
        while (now_ns() < frame->due_ns)
            ;
        if (write(way->to, frame->bytes, frame->length) < 0 && errno != EIO && errno != EINVAL)
            die("write");
        free(frame);
    }
}

int main(int argc, char **argv)
{
    if (argc != 9) {
        fprintf(stderr, "usage: %s NETNS DEVICE NETNS DEVICE DELAY_US JITTER_US LOSS_PPM SEED\n",
                argv[0]);
        return 2;
    }
    int has_offload = atol(argv[7]) == 0;
    int taps[2] = {open_tap(argv[1], argv[2], has_offload), open_tap(argv[3], argv[4], has_offload)};
    prctl(PR_SET_TIMERSLACK, 1000UL);
    struct sched_param first = {.sched_priority = 1};
    sched_setscheduler(0, SCHED_RR, &first); // if permitted: late wake-ups are delay
    static struct direction ways[2];
    pthread_t thread;
    for (int i = 0; i < 2; i++) {
        ways[i] = (struct direction){
            .from = taps[i],
            .to = taps[1 - i],
            .delay_ns = atol(argv[5]) * 1000,
            .jitter_ns = atol(argv[6]) * 1000,
            .loss_ppm = atol(argv[7]),
            .random = (atoll(argv[8]) << 1 | i) + 88172645463325252ULL,
            .lock = PTHREAD_MUTEX_INITIALIZER,
            .filled = PTHREAD_COND_INITIALIZER,
        };
        ways[i].last = &ways[i].first;
        if (pthread_create(&thread, NULL, read_frames, &ways[i]) ||
            pthread_create(&thread, NULL, write_frames, &ways[i]))
            die("pthread_create");
    }
    puts("ready");
    fflush(stdout);
    pthread_join(thread, NULL);
    return 1;
}
