// The best tokens of rows of logits, with their log-probabilities: what a level of a draft tree is made of, so that no
// row of the vocabulary has to be normalised or sorted as a whole.
#pragma once
#include <cmath>
#include <limits>

#include "team.h"

namespace drafttree {

// Numbers above which rows are worth waking other threads for.
constexpr int64_t FEW_LOGITS = 1 << 16;

struct Candidates {
  const float* logits;  // [rows][stride]
  int64_t stride, columns, allowed, count;
  float* logprobs;  // [rows][count], the best first; of equal logits the lower token
  int64_t* tokens;

  // Log-probabilities are over all columns, candidates are of the first `allowed`, at least `count`.
  void find(int64_t row) const {
    const float* own = logits + row * stride;
    float* best = logprobs + row * count;
    int64_t* ids = tokens + row * count;
    int64_t found = 0;
    const auto take = [&](int64_t column) {
      int64_t place = found < count ? found++ : count - 1;
      for (; place > 0 && best[place - 1] < own[column]; place--)
        best[place] = best[place - 1], ids[place] = ids[place - 1];
      best[place] = own[column], ids[place] = column;
    };
    int64_t column = 0;
    for (; column < count; column++) take(column);
    for (; column + LANES <= allowed; column += LANES) {
      if (largest(load(own + column)) <= best[count - 1]) continue;
      for (int lane = 0; lane < LANES; lane++)
        if (own[column + lane] > best[count - 1]) take(column + lane);
    }
    for (; column < allowed; column++)
      if (own[column] > best[count - 1]) take(column);

    const float most = allowed == columns ? best[0] : top(own);
    Floats all{};
    for (column = 0; column + LANES <= columns; column += LANES) all += exponential(load(own + column) - most);
    if (column < columns) {
      float rest[LANES];
      for (int lane = 0; lane < LANES; lane++)
        rest[lane] = column + lane < columns ? own[column + lane] : -std::numeric_limits<float>::infinity();
      all += exponential(load(rest) - most);
    }
    const float logarithm = std::log(sum(all));
    for (int64_t place = 0; place < count; place++) best[place] = best[place] - most - logarithm;
  }

  void find_all(int threads, int64_t rows) const {
    if (threads == 1 || rows == 1 || rows * columns < FEW_LOGITS) {
      for (int64_t row = 0; row < rows; row++) find(row);
      return;
    }
    Team::run(
        threads, [] {},
        [&](Team& team, int thread) {
          for (int64_t row = thread; row < rows; row += team.size()) find(row);
        });
  }

 private:
  float top(const float* own) const {
    float most = own[0];
    for (int64_t column = 1; column < columns; column++) most = own[column] > most ? own[column] : most;
    return most;
  }
};

}  // namespace drafttree
