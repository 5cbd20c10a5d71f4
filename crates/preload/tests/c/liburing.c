// One function of liburing, which calls the kernel by an instruction of its own, as liburing does.
struct io_uring_params;

int io_uring_setup(unsigned entries, struct io_uring_params *params) {
    long said;
    __asm__ volatile("syscall" : "=a"(said) : "a"(425), "D"(entries), "S"(params) : "rcx", "r11", "memory");
    return (int)said;
}
