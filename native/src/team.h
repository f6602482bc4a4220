// The threads of a pass. Between its parts they spin, since a part takes microseconds; between passes they sleep.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <ctime>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
#if !defined(_WIN32)
#include <dlfcn.h>
#include <unistd.h>
#endif

#include "vectors.h"

namespace drafttree {

INLINE void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The threads of an OpenMP library that is in this process already. torch's spin for milliseconds after each of its
// operations, and threads of our own beside them would share their cores (a pass of 13 ms took 20), so passes run on
// them where they can be found. Each thread that calls has a pool of its own, for its operations and its passes alike.
struct OpenMP {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
  int (*thread)() = nullptr, (*threads)() = nullptr;

  static OpenMP& here() {
    static OpenMP found;
    return found;
  }
  // Takes the functions of a library by its path; whether it has them.
  static bool use(const char* path) {
#if !defined(_WIN32)
    void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return false;
    OpenMP found;
    found.parallel = (decltype(found.parallel))dlsym(library, "GOMP_parallel");
    found.thread = (decltype(found.thread))dlsym(library, "omp_get_thread_num");
    found.threads = (decltype(found.threads))dlsym(library, "omp_get_num_threads");
    if (found.parallel && found.thread && found.threads) here() = found;
    return here().parallel != nullptr;
#else
    return false;
#endif
  }
};

class Team {
 public:
  // The team of this process, of so many threads. Passes of several callers take turns: each wants all cores. What is
  // prepared is so in the caller's turn.
  template <class Prepare, class Part>
  static void run(int threads, Prepare&& prepare, Part&& part) {
    Shared& shared = Shared::here();
    std::lock_guard<std::mutex> turn(shared.passes);
    if (!shared.team || shared.team->most_ != threads) {
      shared.team.reset();
      shared.team.reset(new Team(threads));
    }
    prepare();
    shared.team->pass(part);
  }

  // Threads that take part in the present pass.
  int size() const { return used_; }

  // Waits until all threads of the pass are here.
  void barrier() {
    if (used_ == 1) return;
    const uint32_t turn = barriers_.load(std::memory_order_acquire);
    if (waiting_.fetch_add(1) + 1 == used_) {
      waiting_.store(0, std::memory_order_relaxed);
      barriers_.store(turn + 1, std::memory_order_release);
      return;
    }
    for (int tries = 0; barriers_.load(std::memory_order_acquire) == turn; tries++)
      if (tries < PATIENCE) relax();
      else std::this_thread::yield();
  }

  ~Team() {
    ends_ = true;
    wake();
    for (auto& worker : workers_) worker.join();
  }

 private:
  typedef std::chrono::steady_clock Clock;
  // Spins of a barrier, some 50 us, after which a thread lets others have its core.
  static constexpr int PATIENCE = 1000;
  // Spins after which a thread sleeps.
  static constexpr int SLEEP_AFTER = 2000;
  // A pass is disturbed if the system kept a thread from running for a millisecond, and for a larger share of the pass
  // than the thread has of the work: all wait for it, so the others alone would be faster.
  static constexpr int64_t LOST_NS = 1000000;
  // Disturbed passes in a row after which a thread is left out.
  static constexpr int STRIKES = 3;
  // Passes with a thread less; doubled each time up to the most.
  static constexpr int FEWEST_PASSES = 8, MOST_PASSES = 256;

  // One per process: threads do not survive a fork, and a lock may be held by a thread that did not either.
  struct Shared {
    std::mutex passes;
    std::unique_ptr<Team> team;
    static Shared& here() {
      static std::mutex guard;
      static Shared* shared = nullptr;  // never destroyed: threads must not be joined while a process ends
      static long owner = -1;
#if defined(_WIN32)
      const long process = 0;
#else
      const long process = getpid();
#endif
      std::lock_guard<std::mutex> lock(guard);
      if (owner != process) {
        if (shared != nullptr) OpenMP::here() = OpenMP();  // its threads are gone, and it does not know
        shared = new Shared();
        owner = process;
      }
      return *shared;
    }
  };

  explicit Team(int threads) : used_(threads), most_(threads) {
    for (int thread = 1; thread < threads && !OpenMP::here().parallel; thread++)
      workers_.emplace_back([this, thread] { work(thread); });
  }

  template <class Part>
  void pass(Part& part) {
    what_ = &part;
    job_ = [](void* what, Team& team, int thread) { (*(std::remove_reference_t<Part>*)what)(team, thread); };
    lost_ = 0;
    const int asked = used_;
    if (workers_.empty() && asked > 1) {
      OpenMP::here().parallel([](void* team) { ((Team*)team)->work_lent(); }, this, asked, 0);
    } else {
      wake();
      taken_ = work_on(0);
      barrier();
    }
    if (used_ == asked) finished(taken_);
    else used_ = asked;  // fewer threads were lent
  }

  // A lent thread's part of a pass.
  void work_lent() {
    const int thread = OpenMP::here().thread();
    if (thread == 0) used_ = OpenMP::here().threads(), ready_.store(true, std::memory_order_release);
    while (!ready_.load(std::memory_order_acquire)) relax();
    const int64_t taken = work_on(thread);
    if (thread == 0) taken_ = taken;
    barrier();
    if (thread == 0) ready_.store(false, std::memory_order_relaxed);
  }

  // A thread's part of a pass; nanoseconds.
  int64_t work_on(int thread) {
    const auto begun = Clock::now();
    const int64_t busy = used_time();
    job_(what_, *this, thread);
    const int64_t taken = (Clock::now() - begun).count(), lost = taken - (used_time() - busy);
    int64_t most = lost_.load();
    while (busy && lost > most && !lost_.compare_exchange_weak(most, lost)) {
    }
    return taken;
  }

  // Nanoseconds that this thread had a core; 0 where the system does not tell.
  static int64_t used_time() {
#if defined(CLOCK_THREAD_CPUTIME_ID)
    timespec time;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0) return time.tv_sec * 1000000000LL + time.tv_nsec;
#endif
    return 0;
  }

  // A pass whose threads wait for cores that others use is the slower the more threads it has.
  void finished(int64_t taken) {
    const bool disturbed = used_ > 1 && lost_ > LOST_NS && lost_ * used_ > taken;
    strikes_ = disturbed ? strikes_ + 1 : 0;
    if (strikes_ == STRIKES) {
      used_--, strikes_ = 0;
      rest_ = passes_ = passes_ ? std::min(2 * passes_, MOST_PASSES) : FEWEST_PASSES;
    } else if (used_ < most_ && --rest_ <= 0) {
      used_++;
      rest_ = passes_;
    } else if (used_ == most_ && passes_ && --rest_ <= -MOST_PASSES) {
      passes_ = 0;
    }
  }

  // The number of a job and of the threads that take part are one word: a thread that is late to see a job it has no
  // part in must not take the next one's number for its own.
  void wake() {
    jobs_.store(((jobs_.load() >> 16) + 1) << 16 | used_);
    if (asleep_.load()) {
      std::lock_guard<std::mutex> lock(sleep_);
      awake_.notify_all();
    }
  }

  void work(int thread) {
    for (uint64_t seen = 0;;) {
      for (int tries = 0; tries < SLEEP_AFTER && jobs_.load() == seen; tries++) relax();
      if (jobs_.load() == seen) {
        std::unique_lock<std::mutex> lock(sleep_);
        asleep_++;
        awake_.wait(lock, [&] { return jobs_.load() != seen; });
        asleep_--;
      }
      seen = jobs_.load();
      if (ends_) return;
      if (thread >= (int)(seen & 0xffff)) continue;
      work_on(thread);
      barrier();
    }
  }

  std::vector<std::thread> workers_;
  void (*job_)(void*, Team&, int) = nullptr;
  void* what_ = nullptr;
  int64_t taken_ = 0;
  std::atomic<bool> ready_{false};
  int used_, most_, rest_ = 0, passes_ = 0, strikes_ = 0;
  std::atomic<bool> ends_{false};
  std::atomic<int64_t> lost_{0};
  alignas(64) std::atomic<uint64_t> jobs_{0};
  alignas(64) std::atomic<int> waiting_{0};
  alignas(64) std::atomic<uint32_t> barriers_{0};
  std::atomic<int> asleep_{0};
  std::mutex sleep_;
  std::condition_variable awake_;
};

}  // namespace drafttree
