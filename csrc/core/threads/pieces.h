// How threads share a step. Its work is numbered pieces (rows, or blocks of channels); each thread begins with an equal
// run of neighbours and takes from its front, large parts first and single pieces at last. One that has nothing left
// takes the back half of what another still has; of a last piece only after the time of one, in which its owner may begin
// with it, for what was taken away lies in the wrong core's cache at the next step. So a core that is slowed down, or that
// woke up late, does less, and threads of equal speed work as if the step had been cut into equal parts. A step is over when
// all of its pieces are counted as done: nobody waits long for a thread that holds no piece.
//
// Every piece is computed the same way whoever takes it, so the results do not depend on the number of threads.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "thread_pool.h"

namespace xnorpp {

struct Share {
    int begin, end;
};
inline Share share_of(int count, int thread, int threads) {
    return {(int)((long)count * thread / threads), (int)((long)count * (thread + 1) / threads)};
}

// The counters of every step of a call: runs left [thread][step], pieces done [step]. A thread's own counters lie
// together, away from the others'.
class Board {
  public:
    Board(int steps, int threads)
        : threads(threads), row_((steps + 15) / 16 * 16), words_(new std::atomic<uint64_t>[(size_t)row_ * (threads + 1) + 8]{}) {}
    // Shared out among the first `most` threads.
    void open(int step, int count, int most) {
        for (int t = 0; t < threads; t++) {
            const Share run = t < most ? share_of(count, t, most) : Share{0, 0};
            left(step, t).store(pack(run.begin, run.end), std::memory_order_relaxed);
        }
        done(step).store(0, std::memory_order_relaxed);
    }
    std::atomic<uint64_t> &left(int step, int thread) { return words_[(size_t)row_ * thread + step]; }
    std::atomic<uint64_t> &done(int step) { return words_[(size_t)row_ * threads + step]; }
    static uint64_t pack(int begin, int end) { return (uint64_t)(uint32_t)begin << 32 | (uint32_t)end; }

    const int threads;

  private:
    const int row_;
    std::unique_ptr<std::atomic<uint64_t>[]> words_;
};

// One thread's view of one step: for (Share s; pieces.next(s, most);) work on s. False means that the whole step is done.
class Pieces {
  public:
    // A thread alone: everything at once.
    explicit Pieces(int count) : count_(count) {}
    Pieces(Board &board, int step, int count, int thread) : board_(&board), step_(step), count_(count), thread_(thread) {}

    bool alone() const { return !board_; }
    int count() const { return count_; }

    bool next(Share &share, int most) {
        if (!board_) {
            share = {0, count_};
            return taken_ ? false : (taken_ = true, count_ > 0);
        }
        const int64_t ended = ticks();
        if (last_) piece_ = (ended - began_) / last_, last_ = 0;
        for (Patience patience;; patience.wait()) {
            do
                if (take(share, most)) {
                    began_ = ended, last_ = share.end - share.begin;
                    return true;
                }
            while (steal(ticks() - ended < piece_ ? 2 : 1));
            if (taken_) board_->done(step_).fetch_add((uint64_t)taken_, std::memory_order_acq_rel), taken_ = 0;
            if (board_->done(step_).load(std::memory_order_acquire) == (uint64_t)count_) return false;
        }
    }

  private:
    bool take(Share &share, int most) {
        auto &own = board_->left(step_, thread_);
        for (uint64_t run = own.load(std::memory_order_relaxed);;) {
            const int begin = (int)(run >> 32), end = (int)(uint32_t)run, part = (3 * (end - begin) + 2) / 4;
            if (begin >= end) return false;
            const int size = part < most ? part : most;
            if (!own.compare_exchange_weak(run, Board::pack(begin + size, end), std::memory_order_relaxed)) continue;
            share = {begin, begin + size};
            taken_ += size;
            return true;
        }
    }
    // From another that has at least so many left.
    bool steal(int least) {
        for (int i = 1; i < board_->threads; i++) {
            auto &other = board_->left(step_, (thread_ + i) % board_->threads);
            for (uint64_t run = other.load(std::memory_order_relaxed);;) {
                const int begin = (int)(run >> 32), end = (int)(uint32_t)run, middle = end - (end - begin + 1) / 2;
                if (end - begin < least) break;
                if (!other.compare_exchange_weak(run, Board::pack(begin, middle), std::memory_order_relaxed)) continue;
                board_->left(step_, thread_).store(Board::pack(middle, end), std::memory_order_relaxed);
                return true;
            }
        }
        return false;
    }

    Board *board_ = nullptr;
    int step_ = 0;
    const int count_;
    int thread_ = 0;
    int taken_ = 0;  // not yet counted as done
    int last_ = 0;   // taken the last time, `began_`; the time of one of them
    int64_t began_ = 0, piece_ = 0;
};

}  // namespace xnorpp
