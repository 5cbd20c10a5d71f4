// Calls that take more memory than their arguments say, or less: what the kernel answers of served memory that is not in DRAM is what it answers of any other.
// The arguments say what is looked at; prints OK, or the line that failed. What needs root or a device that is not there says that it was not judged.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/fuse.h>
#include <linux/if_tun.h>
#include <linux/kvm.h>
#include <linux/perf_event.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "placed.h"

static int is_all(const char *at, int value, size_t bytes) {
    for (size_t n = 0; n < bytes; n++)
        if (at[n] != (char)value)
            return 0;
    return 1;
}

// A message's name that is nowhere has no length, whatever stands there, and room for control data may be as long as it likes: nothing is lost.
static void messages(void) {
    const struct {
        int type;
        socklen_t name;
        size_t control;
    } all[] = {{SOCK_DGRAM, 0, 0}, {SOCK_DGRAM, 70000, 0}, {SOCK_DGRAM, 0xdeadbeef, 0}, {SOCK_DGRAM, 0, 20000}, {SOCK_STREAM, 0, 20000}, {SOCK_DGRAM, 0, MIB}};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
        int ends[2], passed;
        char *bytes = place(1000), *control = all[n].control ? place(all[n].control) : NULL;
        MUST(socketpair(AF_UNIX, all[n].type, 0, ends) == 0);
        struct iovec part = {bytes, 11};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_namelen = all[n].name};
        memcpy(bytes, "hello world", 11);
        push_out();
        MUST(sendmsg(ends[0], &message, 0) == 11);
        memset(bytes, 1, 1000), part.iov_len = 1000;
        message.msg_control = control, message.msg_controllen = all[n].control;
        push_out();
        MUST(recvmsg(ends[1], &message, MSG_DONTWAIT) == 11 && memcmp(bytes, "hello world\1", 12) == 0);
        MUST(message.msg_namelen == all[n].name && message.msg_controllen == 0 && !(message.msg_flags & MSG_CTRUNC));
        // A file that is passed beside a byte.
        struct cmsghdr *head = (struct cmsghdr *)place(CMSG_SPACE(sizeof(int)));
        *head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(head), &ends[0], sizeof(int));
        message.msg_control = head, message.msg_controllen = CMSG_SPACE(sizeof(int)), part.iov_len = 1;
        push_out();
        MUST(sendmsg(ends[0], &message, 0) == 1);
        message.msg_control = control, message.msg_controllen = all[n].control;
        push_out();
        MUST(recvmsg(ends[1], &message, MSG_DONTWAIT) == 1 && !(message.msg_flags & MSG_CTRUNC) == (all[n].control > 0));
        if (all[n].control) {
            head = CMSG_FIRSTHDR(&message);
            MUST(head && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof(int)));
            memcpy(&passed, CMSG_DATA(head), sizeof passed);
            MUST(close(passed) == 0);
        }
        close(ends[0]), close(ends[1]);
    }
    // A name that is said to be longer than any is taken as far as names go.
    int socket_of = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in *name = (struct sockaddr_in *)place(2000);
    socklen_t len = sizeof *name;
    *name = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    MUST(bind(socket_of, (void *)name, len) == 0 && getsockname(socket_of, (void *)name, &len) == 0);
    in_port_t port = name->sin_port;
    struct iovec part = {place(100), 4};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_name = name, .msg_namelen = 2000};
    push_out();
    MUST(sendmsg(socket_of, &message, 0) == 4);
    memset(name, 7, 2000);
    push_out();
    MUST(recvmsg(socket_of, &message, MSG_DONTWAIT) == 4 && message.msg_namelen == sizeof *name);
    MUST(name->sin_port == port && is_all((char *)(name + 1), 7, 2000 - sizeof *name));
    message.msg_namelen = (socklen_t)-1;
    push_out();
    MUST(sendmsg(socket_of, &message, 0) == -1 && errno == EINVAL);
    close(socket_of);
}

static void connected(int *from, int *to) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof name;
    int door = socket(AF_INET, SOCK_STREAM, 0);
    MUST(bind(door, (void *)&name, len) == 0 && listen(door, 1) == 0 && getsockname(door, (void *)&name, &len) == 0);
    *from = socket(AF_INET, SOCK_STREAM, 0);
    MUST(connect(*from, (void *)&name, len) == 0 && (*to = accept(door, NULL, NULL)) >= 0 && close(door) == 0);
}

// With MSG_TRUNC a stream of TCP drops what it has and writes nothing; a datagram answers how long it was, and writes what there is room for.
static void discards(void) {
    static char sent[400 << 10];
    int from, to, ends[2];
    char *into = arena + 24 * MIB, *other = place(100);
    connected(&from, &to);
    struct iovec parts[2] = {{into, 100}, {into + 3 * PAGE, 8092}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    for (int n = 0; n < 3; n++) {
        memset(into, 'K', 16 * PAGE), memset(sent, 'p', sizeof sent);
        MUST(send(from, sent, 8192, 0) == 8192 && send(from, "next", 4, 0) == 4);
        while (recv(to, sent, 8196, MSG_PEEK) < 8196)
            usleep(1000);
        push_out();
        MUST((n == 0 ? recv(to, into, 8192, MSG_TRUNC) : n == 1 ? recvmsg(to, &message, MSG_TRUNC) : recvfrom(to, into, 8192, MSG_TRUNC | MSG_WAITALL, NULL, NULL)) == 8192);
        MUST(is_all(into, 'K', 16 * PAGE));
        MUST(recv(to, into, 100, 0) == 4 && memcmp(into, "nextK", 5) == 0);
    }
    close(from), close(to);
    // One of the machine's own has no such rule.
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && send(ends[0], "abcdef", 6, 0) == 6);
    push_out();
    MUST(recv(ends[1], into, 4, MSG_TRUNC) == 4 && memcmp(into, "abcdK", 5) == 0);
    parts[0].iov_len = 1, parts[1].iov_len = 10;
    push_out();
    MUST(recvmsg(ends[1], &message, MSG_TRUNC) == 2 && into[0] == 'e' && into[1] == 'b' && into[3 * PAGE] == 'f' && into[3 * PAGE + 1] == 'K');
    close(ends[0]), close(ends[1]);
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    memset(other, 'O', 100);
    for (int n = 0; n < 2; n++) {
        MUST(send(ends[0], "a longer datagram", 17, 0) == 17);
        parts[0] = (struct iovec){other, 2}, parts[1] = (struct iovec){other + 10, 3};
        push_out();
        MUST((n ? recvmsg(ends[1], &message, MSG_TRUNC) : recv(ends[1], other, 5, MSG_TRUNC)) == 17);
        MUST(n == 0 || memcmp(other + 10, "lonO", 4) == 0);
        MUST(memcmp(other, n ? "a lon" : "a lonO", n ? 5 : 6) == 0);
    }
    close(ends[0]), close(ends[1]);
}

enum { FIRST = 256 << 10 };
static pthread_t waiting;
static volatile sig_atomic_t signals;

static void counts_signal(int signal) { (void)signal, signals++; }

static struct {
    int to, first, then;
    const char *what;
} sends;

// A part, and a while later a signal, the rest, or the end.
static void *sends_parts(void *unused) {
    static char bytes[MIB];
    (void)unused;
    memset(bytes, 's', MIB);
    MUST(send(sends.to, bytes, sends.first, 0) == sends.first);
    usleep(200000);
    if (!strcmp(sends.what, "signal"))
        for (int before = signals; signals == before; usleep(100000))
            MUST(pthread_kill(waiting, SIGUSR1) == 0);
    else if (!strcmp(sends.what, "rest"))
        MUST(send(sends.to, bytes, sends.then, 0) == sends.then);
    else if (!strcmp(sends.what, "end"))
        MUST(shutdown(sends.to, SHUT_WR) == 0);
    return NULL;
}

// What is to wait for all ends with what came, where a signal comes (also with SA_RESTART, as some came), where time is up, or nothing more will come.
static void waits_for_all(void) {
    const struct {
        const char *what;
        int first, then, all;
    } ways[] = {{"signal", FIRST, 0, FIRST}, {"signal", FIRST + 50000, 0, FIRST + 50000}, {"rest", FIRST, MIB - FIRST, MIB}, {"rest", FIRST - 10, MIB - FIRST + 10, MIB}, {"end", FIRST, 0, FIRST}, {"time", FIRST, 0, FIRST}, {"not", FIRST, 0, FIRST}};
    struct sigaction action = {.sa_handler = counts_signal, .sa_flags = SA_RESTART};
    char *into = arena + 24 * MIB;
    waiting = pthread_self();
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    for (size_t n = 0; n < 2 * (sizeof ways / sizeof *ways); n++) {
        size_t way = n / 2;
        int ends[2];
        pthread_t sender;
        if (n % 2)
            connected(&ends[0], &ends[1]);
        else
            MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        sends.to = ends[0], sends.first = ways[way].first, sends.then = ways[way].then, sends.what = ways[way].what;
        struct timeval soon = {0, 300000};
        if (!strcmp(sends.what, "time"))
            MUST(setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
        struct iovec part = {into, MIB};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        memset(into, 'K', MIB);
        push_out();
        MUST(pthread_create(&sender, NULL, sends_parts, NULL) == 0);
        if (!strcmp(sends.what, "not")) {
            char byte[FIRST];
            // All of it is there.
            ssize_t room = recv(ends[1], byte, 1, MSG_PEEK | MSG_WAITALL);
            for (int there = 0; room == 1 && there < 100000; usleep(10000))
                MUST(ioctl(ends[1], FIONREAD, &there) == 0);
            MUST(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
        }
        alarm(20);
        ssize_t got = n % 2 ? recvmsg(ends[1], &message, MSG_WAITALL) : recv(ends[1], into, MIB, MSG_WAITALL);
        if (!strcmp(sends.what, "not"))
            MUST(got > 0 && got <= FIRST && fcntl(ends[1], F_SETFL, 0) == 0 && (got == FIRST || recv(ends[1], into + got, FIRST - got, MSG_WAITALL) == FIRST - got));
        else if (got != ways[way].all)
            printf("%s: %zd of %d\n", sends.what, got, ways[way].all);
        MUST(!strcmp(sends.what, "not") || got == ways[way].all);
        alarm(170);
        MUST(pthread_join(sender, NULL) == 0 && is_all(into, 's', ways[way].all));
        close(ends[0]), close(ends[1]);
    }
}

// Whether this process may mount, seen by nobody else.
static int may_mount(void) {
    if (unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0)
        return 1;
    printf("not judged: nothing can be mounted here: errno %d\n", errno);
    return 0;
}

// Arguments further back, and counts that are of C's int.
static void further(void) {
    char source[] = "source", into[10] = "";
    struct iovec here = {into, sizeof source}, *there = (struct iovec *)place(sizeof *there);
    *there = (struct iovec){source, sizeof source};
    push_out();
    MUST(process_vm_readv(getpid(), &here, 1, there, 1, 0) == sizeof source && !strcmp(into, source));
    *there = (struct iovec){into, 4};
    here = (struct iovec){"SOU", 4};
    push_out();
    MUST(process_vm_writev(getpid(), &here, 1, there, 1, 0) == 4 && !strcmp(into, "SOU"));
    gid_t *groups = (gid_t *)place(400);
    memset(groups, 9, 400);
    push_out();
    volatile int fewer = -1; // Else compilers warn.
    MUST(getgroups(fewer, groups) == -1 && errno == EINVAL && syscall(SYS_getgroups, 0xffffffff, groups) == -1 && errno == EINVAL);
    MUST(is_all((char *)groups, 9, 400));
    MUST(syscall(SYS_readlink, "/proc/self/exe", groups, 0xffffffff) == -1 && errno == EINVAL && is_all((char *)groups, 9, 400));
    // There are no sets of fewer than no files.
    char *end = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(end != MAP_FAILED && munmap(end + MIB - PAGE, PAGE) == 0);
    fd_set *set = (fd_set *)(end + MIB - PAGE - 64);
    memset(set, 0, 64);
    push_out();
    MUST(syscall(SYS_select, 0xffffffff, set, NULL, NULL, NULL) == -1 && errno == EINVAL);
    // No call does more than this at once.
    struct iovec *many = (struct iovec *)place(540 * sizeof *many);
    for (int n = 0; n < 540; n++)
        many[n] = (struct iovec){arena, 4 * MIB};
    int nowhere = open("/dev/null", O_WRONLY);
    MUST(writev(nowhere, many, 540) == 0x7ffff000 && close(nowhere) == 0);
    if (!may_mount())
        return;
    struct statfs found;
    MUST(mkdir("mounted", 0700) == 0);
    char *options = text("size=1m,mode=0700");
    for (int n = 0; n < 2; n++) {
        push_out();
        MUST(mount("none", "mounted", "tmpfs", 0, options) == 0);
        MUST(statfs("mounted", &found) == 0 && found.f_blocks * (size_t)found.f_bsize == MIB && umount("mounted") == 0);
        // The last that there is.
        options = end + MIB - PAGE - strlen("size=1m") - 1;
        strcpy(options, "size=1m");
    }
}

// Calls that nobody listed, over several pages, and what may only be read.
static void unlisted(void) {
    enum { COUNT = 30000 };
    int group = semget(IPC_PRIVATE, COUNT, 0600);
    unsigned short *values = (unsigned short *)place(2 * COUNT);
    if (group < 0) {
        printf("not judged: so many semaphores cannot be had: errno %d\n", errno);
    } else {
        for (int n = 0; n < COUNT; n++)
            values[n] = (unsigned short)(n % 32000);
        push_out();
        MUST(semctl(group, 0, SETALL, values) == 0);
        memset(values, 0, 2 * COUNT);
        push_out();
        MUST(semctl(group, 0, GETALL, values) == 0);
        for (int n = 0; n < COUNT; n++)
            MUST(values[n] == n % 32000);
        // At the end of what there is, and beyond it.
        char *end = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(end != MAP_FAILED && munmap(end + MIB - 64 * PAGE, 64 * PAGE) == 0);
        end += MIB - 64 * PAGE;
        memcpy(end - 2 * COUNT, values, 2 * COUNT);
        push_out();
        MUST(semctl(group, 0, SETALL, end - 2 * COUNT) == 0);
        push_out();
        // Nobody's memory has zeros, or is not there.
        MUST(semctl(group, 0, SETALL, end - 100) == 0 || errno == EFAULT);
        MUST(semctl(group, 0, IPC_RMID) == 0);
    }
    char *closed = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(closed != MAP_FAILED);
    memset(closed, 1, MIB);
    MUST(mprotect(closed, MIB / 2, PROT_READ) == 0 && mprotect(closed + MIB / 2, MIB / 2, PROT_NONE) == 0);
    group = semget(IPC_PRIVATE, 100, 0600);
    MUST(group >= 0);
    push_out();
    MUST(semctl(group, 0, SETALL, closed + MIB / 2 - 200) == 0);
    push_out();
    MUST(semctl(group, 0, SETALL, closed + MIB / 2 - 100) == -1 && errno == EFAULT);
    MUST(semctl(group, 0, GETALL, closed + PAGE) == -1 && errno == EFAULT);
    MUST(semctl(group, 0, IPC_RMID) == 0);
    push_out();
    MUST(syscall(SYS_futex, closed + 5 * PAGE, 128, 5, NULL, NULL, 0) == -1 && errno == EAGAIN);
    MUST(syscall(SYS_futex, closed + MIB / 2, 128, 5, NULL, NULL, 0) == -1 && errno == EFAULT);
    MUST(is_all(closed, 1, MIB / 2));
}

// A stack for signals with flags that nobody knows is refused.
static void stacks(void) {
    stack_t mine = {.ss_sp = malloc(MIB), .ss_size = MIB, .ss_flags = 0x40}, told;
    MUST(sigaltstack(&mine, NULL) == -1 && errno == EINVAL);
    mine.ss_flags = SS_DISABLE | SS_ONSTACK;
    MUST(sigaltstack(&mine, NULL) == -1 && errno == EINVAL);
    MUST(sigaltstack(NULL, &told) == 0 && told.ss_flags == SS_DISABLE);
    mine.ss_flags = SS_ONSTACK;
    MUST(sigaltstack(&mine, NULL) == 0 && sigaltstack(NULL, &told) == 0 && told.ss_sp == mine.ss_sp && told.ss_flags == 0);
    mine.ss_flags = SS_DISABLE;
    MUST(sigaltstack(&mine, NULL) == 0 && sigaltstack(NULL, &told) == 0 && told.ss_sp == NULL && told.ss_size == 0 && told.ss_flags == SS_DISABLE);
}

// What is asked of processors has a head that says how many entries follow.
static void machines(void) {
    enum { ENTRIES = 250, BYTES = sizeof(struct kvm_cpuid2) + ENTRIES * sizeof(struct kvm_cpuid_entry2) };
    static union {
        struct kvm_cpuid2 head;
        char bytes[BYTES];
    } warm;
    int kvm = open("/dev/kvm", O_RDWR);
    if (kvm < 0) {
        printf("not judged: no machine can be made: errno %d\n", errno);
        return;
    }
    struct kvm_cpuid2 *cold = (struct kvm_cpuid2 *)place(2 * BYTES);
    memset(cold, 5, 2 * BYTES), memset(&warm, 5, sizeof warm);
    cold->nent = warm.head.nent = ENTRIES;
    push_out();
    MUST(ioctl(kvm, KVM_GET_SUPPORTED_CPUID, cold) == 0 && ioctl(kvm, KVM_GET_SUPPORTED_CPUID, &warm) == 0);
    MUST(cold->nent == warm.head.nent && cold->entries[0].eax == warm.head.entries[0].eax && cold->entries[0].ebx == warm.head.entries[0].ebx);
    MUST(is_all((char *)&cold->entries[cold->nent], 5, 2 * BYTES - offsetof(struct kvm_cpuid2, entries) - cold->nent * sizeof *cold->entries));
    int machine = ioctl(kvm, KVM_CREATE_VM, 0), processor = ioctl(machine, KVM_CREATE_VCPU, 0);
    if (processor < 0) {
        printf("not judged: no processor can be made: errno %d\n", errno);
        return;
    }
    push_out();
    MUST(ioctl(processor, KVM_SET_CPUID2, cold) == 0);
    struct kvm_cpuid2 *told = (struct kvm_cpuid2 *)place(BYTES);
    memset(told, 0, BYTES), told->nent = ENTRIES;
    push_out();
    MUST(ioctl(processor, KVM_GET_CPUID2, told) == 0 && told->nent == cold->nent && told->entries[0].ebx == cold->entries[0].ebx);
    close(processor), close(machine), close(kvm);
}

// Others whose number says less than they take.
static void devices(void) {
    int tunnels = open("/dev/net/tun", O_RDWR);
    struct ifreq *asked = (struct ifreq *)place(sizeof *asked), *told = (struct ifreq *)place(sizeof *told);
    memset(asked, 0, sizeof *asked), memset(told, 0, sizeof *told);
    strcpy(asked->ifr_name, "terrace%d"), asked->ifr_flags = IFF_TUN | IFF_NO_PI;
    push_out();
    if (tunnels < 0 || (ioctl(tunnels, TUNSETIFF, asked) < 0 && errno == EPERM)) {
        printf("not judged: no tunnel can be made: errno %d\n", errno);
    } else {
        MUST(strncmp(asked->ifr_name, "terrace", 7) == 0 && !strchr(asked->ifr_name, '%'));
        push_out();
        MUST(ioctl(tunnels, TUNGETIFF, told) == 0 && !strcmp(told->ifr_name, asked->ifr_name) && told->ifr_flags & IFF_TUN);
    }
    close(tunnels);
    // What is refused for what it says was read.
    int *noise = (int *)place(16);
    noise[0] = -1, noise[1] = 0;
    int source = open("/dev/urandom", O_WRONLY);
    push_out();
    MUST(source < 0 || (ioctl(source, _IOW('R', 0x03, int[2]), noise) == -1 && (errno == EINVAL || errno == EPERM)));
    close(source);
    int id = -1;
    if (may_mount() && mkdir("traced", 0700) == 0 && mount("none", "traced", "tracefs", 0, NULL) == 0) {
        FILE *file = fopen("traced/events/sched/sched_switch/id", "r");
        MUST(!file || fscanf(file, "%d", &id) == 1);
    }
    struct perf_event_attr kind = {.type = PERF_TYPE_TRACEPOINT, .size = sizeof kind, .config = (unsigned)id};
    int events = id < 0 ? -1 : (int)syscall(SYS_perf_event_open, &kind, 0, -1, -1, 0);
    if (events < 0) {
        printf("not judged: no events can be had: errno %d\n", errno);
        return;
    }
    char *filter = text("prev_pid != 12345 && next_pid != 4");
    push_out();
    MUST(ioctl(events, PERF_EVENT_IOC_SET_FILTER, filter) == 0);
    filter = text("there is no such filter");
    push_out();
    MUST(ioctl(events, PERF_EVENT_IOC_SET_FILTER, filter) == -1 && errno != EFAULT);
    close(events);
}

enum { REQUEST = MIB + PAGE, FILE_BYTES = 4 * MIB };
static int requests;
static char *content;

static void answer(const struct fuse_in_header *in, int error, const void *what, size_t bytes) {
    struct fuse_out_header *head = malloc(sizeof *head);
    *head = (struct fuse_out_header){(unsigned)(sizeof *head + bytes), -error, in->unique};
    struct iovec parts[] = {{head, sizeof *head}, {(void *)what, bytes}};
    push_out();
    MUST(writev(requests, parts, bytes ? 2 : 1) == (ssize_t)head->len);
    free(head);
}

// A file system of one file.
static void serve(const struct fuse_in_header *in, const void *argument) {
    const struct fuse_init_in *began = argument;
    const struct fuse_read_in *reads = argument;
    const struct fuse_write_in *writes = argument;
    struct fuse_attr_out about = {.attr = {.ino = in->nodeid, .mode = in->nodeid == 1 ? S_IFDIR | 0755 : S_IFREG | 0644, .nlink = 1, .size = FILE_BYTES}};
    struct fuse_entry_out entry = {.nodeid = 2, .attr = {.ino = 2, .mode = S_IFREG | 0644, .nlink = 1, .size = FILE_BYTES}};
    struct fuse_open_out opened = {.fh = 1, .open_flags = FOPEN_DIRECT_IO};
    struct fuse_write_out written = {0};
    struct fuse_init_out can = {.major = 7, .minor = 31, .max_write = MIB, .max_background = 12, .congestion_threshold = 9, .time_gran = 1, .flags = FUSE_BIG_WRITES | FUSE_MAX_PAGES, .max_pages = 256};
    switch (in->opcode) {
    case FUSE_INIT:
        can.max_readahead = began->max_readahead;
        return answer(in, 0, &can, sizeof can);
    case FUSE_GETATTR:
        return answer(in, 0, &about, sizeof about);
    case FUSE_LOOKUP:
        return answer(in, 0, &entry, sizeof entry);
    case FUSE_OPEN:
        return answer(in, 0, &opened, sizeof opened);
    case FUSE_READ:
        return answer(in, 0, content + reads->offset, reads->size);
    case FUSE_WRITE:
        memcpy(content + writes->offset, writes + 1, written.size = writes->size);
        return answer(in, 0, &written, sizeof written);
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        return;
    case FUSE_FLUSH:
    case FUSE_RELEASE:
    case FUSE_ACCESS:
        return answer(in, 0, NULL, 0);
    default:
        return answer(in, ENOSYS, NULL, 0);
    }
}

// Its memory is static: it is not what is looked at.
static void *uses_the_file(void *unused) {
    static char bytes[MIB];
    (void)unused;
    int opened = open("mounted-here/file", O_RDWR);
    MUST(opened >= 0 && read(opened, bytes, MIB) == MIB && is_all(bytes, 'c', MIB));
    memset(bytes, 'w', MIB);
    MUST(pwrite(opened, bytes, MIB, MIB) == MIB && pread(opened, bytes, 10, MIB) == 10 && is_all(bytes, 'w', 10));
    MUST(pread(opened, bytes, MIB, 2 * MIB) == MIB && is_all(bytes, 'c', MIB) && close(opened) == 0);
    MUST(umount2("mounted-here", MNT_DETACH) == 0);
    return NULL;
}

static void file_system(void) {
    char options[100];
    pthread_t user;
    requests = open("/dev/fuse", O_RDWR);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", requests);
    if (requests < 0 || !may_mount() || mkdir("mounted-here", 0700) || mount("terrace", "mounted-here", "fuse", 0, options)) {
        printf("not judged: no file system can be made: errno %d\n", errno);
        return;
    }
    char *request = place(REQUEST);
    content = arena + 24 * MIB;
    memset(content, 'c', FILE_BYTES);
    MUST(pthread_create(&user, NULL, uses_the_file, NULL) == 0);
    for (;;) {
        push_out();
        ssize_t got = read(requests, request, REQUEST);
        if (got < 0 && errno == ENODEV)
            break;
        MUST(got >= (ssize_t)sizeof(struct fuse_in_header) || errno == EINTR || errno == ENOENT);
        struct fuse_in_header head;
        memcpy(&head, request, sizeof head);
        if (got >= 0)
            serve(&head, request + sizeof head);
    }
    MUST(pthread_join(user, NULL) == 0 && is_all(content + MIB, 'w', MIB) && is_all(content, 'c', MIB));
    close(requests);
}

// What has a length of its own comes and goes as one, however long it is.
static void whole(void) {
    enum { LONG = 700000, PARTS = 600 };
    int ends[2], room = 2 * MIB, now = 0;
    socklen_t len = sizeof now;
    char *from = arena + 24 * MIB, *into = arena + 30 * MIB + 5;
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
    MUST(getsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &now, &len) == 0);
    if (now < room)
        printf("not judged: messages are no longer than %d bytes\n", now);
    for (int n = 0; n < 4 && now >= room; n++) {
        struct iovec parts[] = {{from, 1000}, {from + 2 * PAGE, LONG - 1000}}, back[] = {{into, 500000}, {into + MIB, MIB}};
        struct msghdr out = {.msg_iov = parts, .msg_iovlen = 2}, in = {.msg_iov = back, .msg_iovlen = 2};
        memset(from, 'a' + n, MIB), memset(into, 'z', 3 * MIB);
        push_out();
        MUST((n == 0 ? send(ends[0], from, LONG, 0) : n == 1 ? sendmsg(ends[0], &out, 0) : n == 2 ? write(ends[0], from, LONG) : writev(ends[0], parts, 2)) == LONG);
        push_out();
        MUST((n == 0 ? recv(ends[1], into, MIB, 0) : n == 1 ? recvmsg(ends[1], &in, 0) : n == 2 ? read(ends[1], into, MIB) : readv(ends[1], back, 2)) == LONG);
        char *rest = n % 2 ? into + MIB : into + 500000;
        MUST(is_all(into, 'a' + n, 500000) && is_all(rest, 'a' + n, LONG - 500000) && rest[LONG - 500000] == 'z');
    }
    // Of pages in hundreds.
    static struct iovec pages[PARTS];
    char *first = (char *)(((uintptr_t)arena + 24 * MIB) & ~(uintptr_t)(PAGE - 1));
    memset(first, 'q', PARTS * PAGE);
    for (int n = 0; n < PARTS; n++)
        pages[n] = (struct iovec){first + n * PAGE + (n % 2 ? 0 : 512), n % 2 ? 512 : 16};
    struct msghdr many = {.msg_iov = pages, .msg_iovlen = PARTS};
    push_out();
    MUST(sendmsg(ends[0], &many, 0) == PARTS / 2 * (512 + 16));
    push_out();
    MUST(recv(ends[1], into, MIB, 0) == PARTS / 2 * (512 + 16));
    close(ends[0]), close(ends[1]);
    // All that was seen of a directory, at once.
    int seen = inotify_init1(IN_NONBLOCK), made = 0;
    MUST(mkdir("seen", 0700) == 0 && inotify_add_watch(seen, "seen", IN_CREATE) >= 0);
    char name[240], *told = arena + 24 * MIB;
    for (; made < 1500; made++) {
        memset(name, 'n', sizeof name);
        snprintf(name, 20, "seen/%06d", made), name[11] = 'n', name[sizeof name - 1] = 0;
        int file = open(name, O_CREAT | O_RDWR, 0600);
        MUST(file >= 0 && close(file) == 0);
    }
    push_out();
    ssize_t bytes = read(seen, told, MIB);
    for (ssize_t at = 0; at < bytes; made--)
        at += (ssize_t)sizeof(struct inotify_event) + ((struct inotify_event *)(told + at))->len;
    MUST(bytes > 300 << 10 && made == 0);
    close(seen);
    // What gives without an end is given in pieces.
    int zeros = open("/dev/zero", O_RDWR);
    memset(told, 1, 8 * MIB);
    push_out();
    MUST(read(zeros, told, 8 * MIB) == 8 * MIB && is_all(told, 0, 8 * MIB) && write(zeros, told, 8 * MIB) == 8 * MIB);
    close(zeros);
}

int main(int count, char **args) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    arena = malloc(40 * MIB), pushed = malloc(PUSH);
    MUST(arena && pushed && count > 1);
    memset(arena, 1, 40 * MIB);
    push_out();
    alarm(170);
    const struct {
        const char *name;
        void (*look)(void);
    } all[] = {{"messages", messages}, {"discards", discards}, {"waits", waits_for_all}, {"further", further}, {"unlisted", unlisted}, {"stacks", stacks}, {"machines", machines}, {"devices", devices}, {"whole", whole}, {"file-system", file_system}};
    enum { ALL = sizeof all / sizeof *all };
    for (int arg = 1; arg < count; arg++) {
        size_t n = 0;
        while (n < ALL && strcmp(args[arg], all[n].name))
            n++;
        MUST(n < ALL);
        all[n].look();
    }
    puts("OK");
}
