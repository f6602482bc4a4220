// Products of rows with a packed weight of any format.
#pragma once
#include "group_products.h"
#include "products.h"

namespace drafttree {

// Computes a share of a product, in a thread that holds an `Amx`. `next`: the weights that this thread reads
// afterwards, null if there are none. Rows of `to` have room for whole panels.
inline void multiply(const Panels& weight, const RowsView& rows, Share share, Destination to, const char* next) {
  switch (weight.format) {
    case Format::float32:
      return multiply<Format::float32>(weight, rows, share, to, next);
    case Format::bfloat16:
      return multiply<Format::bfloat16>(weight, rows, share, to, next);
    case Format::int8:
      return multiply<Format::int8>(weight, rows, share, to, next);
    default:
      return visit_blocks(weight.format, [&](auto block) {
        multiply_groups<typename decltype(block)::Layout>(weight, rows, share, to, next);
      });
  }
}

// Some outputs of a product by itself: of rows `[count][inputs]`, to `out` `[count][outputs]`.
inline void multiply_alone(int threads, const Panels& weight, int64_t first, int64_t outputs, const float* from,
                           int64_t count, float* out) {
  const int64_t start = first / PANEL, panels = (first + outputs + PANEL - 1) / PANEL - start;
  const int64_t stride = panels * PANEL;
  Rows rows;
  Buffer products;
  rows.reserve(count, weight.inputs);
  float* to = products.reserve<float>(count * stride);
  Team::run(
      threads, [] {},
      [&](Team& team, int thread) {
        const Amx registers;
        for (int64_t row = thread; row < count; row += team.size())
          rows.take(row, weight.format, weight.inputs, from + row * weight.inputs);
        team.barrier();
        multiply(weight, rows, Share(start, panels, thread, team.size()), {to - start * PANEL, stride}, nullptr);
      });
  for (int64_t row = 0; row < count; row++)
    memcpy(out + row * outputs, to + row * stride + first - start * PANEL, outputs * 4);
}

}  // namespace drafttree
