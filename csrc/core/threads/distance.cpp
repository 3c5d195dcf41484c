#include "distance.h"

#if defined(__linux__) && !defined(XNORPP_NO_THREADS)
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>

namespace xnorpp {
namespace {

constexpr int kRounds = 20, kTurns = 1000;  // some milliseconds in all

struct alignas(128) Line {  // alone on what a processor may fetch together
    std::atomic<int> turn{0};
};

struct Game {
    Line line;
    std::atomic<int> ready{0};
    std::atomic<bool> refused{false};
    double fastest = 1e30;  // nanoseconds for a round

    // Waits until it is this player's turn and gives it to the other one, kTurns times in each round.
    void play(int core, int player) {
        cpu_set_t here;
        CPU_ZERO(&here);
        CPU_SET(core, &here);
        if (pthread_setaffinity_np(pthread_self(), sizeof here, &here)) refused = true;
        ready++;
        while (ready < 2) std::this_thread::yield();
        if (refused) return;
        for (int round = 0; round < kRounds; round++) {
            const auto start = std::chrono::steady_clock::now();
            for (int turn = 0; turn < kTurns; turn++) {
                while (line.turn.load(std::memory_order_acquire) != player) {}
                line.turn.store(1 - player, std::memory_order_release);
            }
            const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
            if (player == 0) fastest = std::min(fastest, took.count());
        }
    }
};

}  // namespace

double core_distance(int first, int second) {
    if (first == second || std::min(first, second) < 0 || std::max(first, second) >= CPU_SETSIZE) return -1;
    Game game;
    std::thread players[2];
    try {
        players[0] = std::thread([&] { game.play(first, 0); });
        players[1] = std::thread([&] { game.play(second, 1); });
    } catch (const std::system_error &) {  // no memory for a thread: the first must not wait for the second
        game.refused = true;
        game.ready = 2;
    }
    for (std::thread &player : players)
        if (player.joinable()) player.join();
    return game.refused ? -1 : game.fastest / (2 * kTurns);
}

}  // namespace xnorpp
#else
namespace xnorpp {
double core_distance(int, int) { return -1; }
}  // namespace xnorpp
#endif
