// Attention of the nodes of a tree over `[prefix | tree]`, by absolute positions.
//
// A query's scores, its probabilities and what it reads of the values are computed in blocks of 64 absolute positions,
// in order, whether those rows are committed or drafted: a node of a tree gets the bits that plain decoding gives it.
// Keys and values are read once for all queries of a piece of a text, by the tiles of the products: of scores the keys
// are the weights, of the result the values.
#pragma once
#include <limits>
#include <vector>

#include "products.h"

namespace drafttree {

// The keys or values of one head in a KV cache, `[rows][width]`, float32 or bfloat16.
struct HeadRows {
  char* data;
  Format format;
  int64_t width;

  int64_t row_bytes() const { return width * (format == Format::float32 ? 4 : 2); }
  void write(int64_t row, const float* from) {
    if (format == Format::float32) memcpy(data + row * row_bytes(), from, width * 4);
    else
      for (int64_t i = 0; i < width; i++) ((uint16_t*)(data + row * row_bytes()))[i] = rounded(from[i]);
  }
  // Some rows as float32, `stride` numbers apart.
  void read(int64_t row, int64_t count, float* to, int64_t stride) const {
    for (int64_t i = 0; i < count; i++, to += stride) {
      const char* from = data + (row + i) * row_bytes();
      if (format == Format::float32) memcpy(to, from, width * 4);
      else
        for (int64_t j = 0; j < width; j++) to[j] = widened(((const uint16_t*)from)[j]);
    }
  }
};

// Nodes of one text that attend together. All of them see the first `shared` rows; node i also sees the rows
// `own[starts[i]]` to `own[starts[i + 1] - 1]`, itself the last, which stand at the positions from `shared` on.
struct Piece {
  int64_t text, first, nodes, shared;
  int64_t own_first, own_end;  // rows among which their own are
  const int32_t *own, *starts;
};

struct AttentionShape {
  int64_t width, groups;  // of a head; query heads that share a key head
  int64_t window;         // a token sees this many positions, its own included
};

// What a thread needs for attention.
class Attention {
 public:
  // Queries of a head: `query(node, group)` points to them, scaled; `result(node, group)` to where the result goes.
  template <class Query, class Result>
  void attend(const AttentionShape& shape, const Piece& piece, const HeadRows& keys, const HeadRows& values,
              Query query, Result result) {
    const int64_t width = shape.width, queries = piece.nodes * shape.groups, columns = rounded_up(width, PANEL);
    int64_t last = 0;
    for (int64_t node = 0; node < piece.nodes; node++) last = std::max(last, position(piece, node));
    const int64_t begin = std::max<int64_t>(0, std::min(piece.shared, earliest(shape, piece)) / PANEL * PANEL);
    const int64_t blocks = (last - begin) / PANEL + 1;
    const int64_t row = rounded_up(width, LANES);

    float* q = queries_.reserve<float>(queries * row);
    for (int64_t i = 0; i < queries; i++) memcpy(q + i * row, query(i / shape.groups, i % shape.groups), width * 4);

    // scores: [block][query][64]
    float* scores = scores_.reserve<float>(blocks * queries * PANEL);
    for (int64_t at = begin; at < piece.shared; at += PANEL)
      score(keys, at, std::min(PANEL, piece.shared - at), q, row, queries, scores + (at - begin) * queries);
    for (int64_t at = piece.own_first; at < piece.own_end; at += PANEL) {
      float* own = own_.reserve<float>(queries * PANEL);
      score(keys, at, std::min(PANEL, piece.own_end - at), q, row, queries, own);
      for (int64_t i = 0; i < queries; i++) {
        const int64_t node = i / shape.groups;
        for (int32_t seen = piece.starts[node]; seen < piece.starts[node + 1]; seen++) {
          const int64_t from = piece.own[seen] - at, to = piece.shared + seen - piece.starts[node] - begin;
          if (from >= 0 && from < PANEL)
            scores[to / PANEL * queries * PANEL + i * PANEL + to % PANEL] = own[i * PANEL + from];
        }
      }
    }
    float* sums = sums_.reserve<float>(queries);
    for (int64_t i = 0; i < queries; i++) {
      const int64_t end = position(piece, i / shape.groups) + 1;
      sums[i] = soften(scores + i * PANEL, queries * PANEL, std::max<int64_t>(end - shape.window, 0) - begin,
                       end - begin, blocks);
    }

    // results: the sum of the blocks before, and of the block that goes on
    float* total = total_.reserve<float>(queries * columns);
    float* block = block_.reserve<float>(queries * columns);
    memset(total, 0, queries * columns * 4), memset(block, 0, queries * columns * 4);
    for (int64_t at = begin; at < piece.shared; at += PANEL) {
      read(values, at, std::min(PANEL, piece.shared - at), scores + (at - begin) * queries, queries, block);
      if (at + PANEL <= piece.shared) add(total, block, queries * columns);
    }
    float* value = values_.reserve<float>(columns);
    for (int64_t i = 0; i < queries; i++) {
      const int64_t node = i / shape.groups;
      for (int32_t seen = piece.starts[node]; seen < piece.starts[node + 1]; seen++) {
        const int64_t to = piece.shared + seen - piece.starts[node] - begin;
        if (to % PANEL == 0) add(total + i * columns, block + i * columns, columns);
        values.read(piece.own[seen], 1, value, 0);
        const Floats weight = splat(scores[to / PANEL * queries * PANEL + i * PANEL + to % PANEL]);
        for (int64_t c = 0; c < columns; c += LANES) {
          float* into = block + i * columns + c;
          store(into, fused(load(value + c), weight, load(into)));
        }
      }
      add(total + i * columns, block + i * columns, columns);
      float* out = result(node, i % shape.groups);
      const float inverse = 1 / sums[i];
      for (int64_t c = 0; c < width; c++) out[c] = total[i * columns + c] * inverse;
    }
  }

 private:
  Buffer queries_, scores_, own_, sums_, total_, block_, keys_, rows_, values_;

  static int64_t position(const Piece& piece, int64_t node) {
    return piece.shared + piece.starts[node + 1] - piece.starts[node] - 1;
  }
  static int64_t earliest(const AttentionShape& shape, const Piece& piece) {
    int64_t first = std::numeric_limits<int64_t>::max();
    for (int64_t node = 0; node < piece.nodes; node++)
      first = std::min(first, position(piece, node) + 1 - shape.window);
    return std::max<int64_t>(first, 0);
  }

  // Scores `[queries][64]` of rows of keys.
  void score(const HeadRows& keys, int64_t row, int64_t count, const float* q, int64_t stride, int64_t queries,
             float* to) {
    const int64_t width = keys.width, padded = rounded_up(width, LANES);
    float* rows = rows_.reserve<float>(PANEL * padded);
    keys.read(row, count, rows, padded);
    float* turned = keys_.reserve<float>(padded * PANEL);
    for (int64_t at = 0; at < count; at += LANES)
      for (int64_t c = 0; c < padded; c += LANES) {
        Floats square[LANES];
        for (int lane = 0; lane < LANES; lane++)
          square[lane] = at + lane < count ? load(rows + (at + lane) * padded + c) : Floats{};
        transpose(square);
        for (int lane = 0; lane < LANES; lane++) store(turned + (c + lane) * PANEL + at, square[lane]);
      }
    tiles((const char*)turned, PANEL * 4, (const char*)q, stride * 4, width, queries, to, true);
  }

  // Adds `[queries][64]` probabilities times rows of values to `[queries][columns]`, which begin anew.
  void read(const HeadRows& values, int64_t row, int64_t count, const float* probabilities, int64_t queries,
            float* to) {
    const int64_t columns = rounded_up(values.width, PANEL);
    const char* from = values.data + row * values.row_bytes();
    if (values.format != Format::float32 || values.width != columns) {
      float* rows = rows_.reserve<float>(PANEL * columns);
      values.read(row, count, rows, columns);
      from = (const char*)rows;
    }
    if (columns == PANEL)
      return tiles(from, PANEL * 4, (const char*)probabilities, PANEL * 4, count, queries, to, true);
    float* part = own_.reserve<float>(queries * PANEL);
    for (int64_t c = 0; c < columns; c += PANEL) {
      tiles(from + c * 4, columns * 4, (const char*)probabilities, PANEL * 4, count, queries, part, true);
      for (int64_t i = 0; i < queries; i++) memcpy(to + i * columns + c, part + i * PANEL, PANEL * 4);
    }
  }

  static void tiles(const char* weights, int64_t apart, const char* rows, int64_t stride, int64_t words, int64_t count,
                    float* to, bool first) {
    const Blocks<Format::float32> blocks{count};
    for (int64_t block = 0; block < blocks.count; block++) {
      const int64_t start = blocks.start(block), end = blocks.start(block + 1);
      block_tile<Format::float32>(
          end - start, 0, {weights, apart, rows + start * stride, stride, words, weights, to + start * PANEL, first});
    }
  }

  // e^(score - the largest), 0 outside `[first, end)`; their sum. A query's blocks lie `apart` numbers from each other.
  static float soften(float* scores, int64_t apart, int64_t first, int64_t end, int64_t blocks) {
    const float none = -std::numeric_limits<float>::max();
    Floats most = splat(none);
    for (int64_t block = 0; block < blocks; block++) {
      float* own = scores + block * apart;
      for (int64_t i = 0; i < PANEL; i++)
        if (block * PANEL + i < first || block * PANEL + i >= end) own[i] = none;
      for (int64_t i = 0; i < PANEL; i += LANES) most = larger(load(own + i), most);
    }
    const Floats top = splat(largest(most));
    Floats all{};
    for (int64_t block = 0; block < blocks; block++)
      for (int64_t i = 0; i < PANEL; i += LANES) {
        float* own = scores + block * apart + i;
        const Floats power = exponential(load(own) - top);
        store(own, power);
        all += power;
      }
    return sum(all);
  }

  static void add(float* total, float* block, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES) store(total + i, load(total + i) + load(block + i));
    memset(block, 0, count * 4);
  }

  template <int STEP, int... lane>
  INLINE void exchange(Floats& a, Floats& b, std::integer_sequence<int, lane...>) {
    const Floats low = __builtin_shufflevector(a, b, (lane & STEP ? LANES + lane - STEP : lane)...);
    b = __builtin_shufflevector(a, b, (lane & STEP ? LANES + lane : lane + STEP)...);
    a = low;
  }
  template <int STEP>
  INLINE void exchange(Floats* rows) {
    if constexpr (STEP < LANES) {
      UNROLL
      for (int row = 0; row < LANES; row++)
        if (!(row & STEP)) exchange<STEP>(rows[row], rows[row + STEP], std::make_integer_sequence<int, LANES>());
      exchange<2 * STEP>(rows);
    }
  }
  INLINE void transpose(Floats* rows) { exchange<1>(rows); }
};

}  // namespace drafttree
