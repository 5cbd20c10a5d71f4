// C++ under `terrace run`: exceptions through frames while memory is away, containers, new and delete of every kind, threads that hold mutexes on cold
// pages, signals that come while threads fault. Prints OK.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <sys/time.h>
#include <thread>
#include <vector>

struct alignas(128) Wide {
    char bytes[20000];
};

static std::atomic<long> signals{0};
static char *seen_by_signals;

// Touches cold memory, as handlers do.
static void on_signal(int) {
    signals++;
    seen_by_signals[(signals * 4096 * 37) % (40 << 20)]++;
}

[[noreturn]] static void deeper(int depth, std::vector<std::string> &held) {
    std::vector<char> frame(100000, static_cast<char>(depth));
    if (depth == 0)
        throw std::runtime_error(held.at(held.size() / 2));
    try {
        deeper(depth - 1, held);
    } catch (const std::runtime_error &error) {
        if (frame[99999] != static_cast<char>(depth))
            std::abort();
        throw std::runtime_error(std::string(error.what()) + "!");
    }
}

struct Locked {
    std::mutex mutex;
    long count = 0;
    char padding[5000];
};

int main() {
    std::vector<char> push(48 << 20);
    seen_by_signals = static_cast<char *>(std::calloc(40 << 20, 1));
    auto push_out = [&] {
        for (size_t n = 0; n < push.size(); n += 4096)
            push[n]++;
    };
    std::vector<std::string> held;
    for (int n = 0; n < 3000; n++)
        held.emplace_back(5000, static_cast<char>('a' + n % 26));
    push_out();
    for (int n = 0; n < 20; n++) {
        try {
            deeper(20, held);
        } catch (const std::exception &error) {
            if (std::strlen(error.what()) != 5020)
                return std::puts("a wrong message"), 1;
        }
    }
    try {
        std::vector<char> too_much(1UL << 50);
        return std::puts("memory out of nothing"), 1;
    } catch (const std::bad_alloc &) {
    }
    std::vector<std::unique_ptr<Wide>> wide;
    for (int n = 0; n < 1000; n++) {
        wide.push_back(std::make_unique<Wide>());
        wide.back()->bytes[n] = 3;
        if (reinterpret_cast<std::uintptr_t>(wide.back().get()) % 128)
            return std::puts("not aligned"), 1;
    }
    push_out();
    for (int n = 0; n < 1000; n++)
        if (wide[n]->bytes[n] != 3)
            return std::puts("a wrong byte"), 1;
    // Threads, with locks that lie in served memory.
    struct itimerval often = {{0, 2000}, {0, 2000}};
    std::signal(SIGALRM, on_signal);
    setitimer(ITIMER_REAL, &often, nullptr);
    auto locks = std::make_unique<std::vector<Locked>>(2000);
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; t++)
        threads.emplace_back([&, t] {
            unsigned state = t + 1;
            for (int n = 0; n < 10000; n++) {
                state = state * 1103515245 + 12345;
                auto &lock = (*locks)[(state >> 8) % locks->size()];
                std::lock_guard<std::mutex> guard(lock.mutex);
                lock.count++;
                push[(state >> 4) % push.size()]++;
            }
        });
    for (auto &thread : threads)
        thread.join();
    often = {};
    setitimer(ITIMER_REAL, &often, nullptr);
    long sum = 0;
    for (auto &lock : *locks)
        sum += lock.count;
    if (sum != 60000 || signals == 0)
        return std::printf("%ld of 60000, %ld signals\n", sum, signals.load()), 1;
    std::puts("OK");
    return 0;
}
