// Attention of the nodes of a tree over `[prefix | tree]`, by absolute positions.
//
// Positions are cut into splits of 512, and these into blocks of 64. Of a split a query has the largest score, the sum
// of its probabilities and the values by them, computed block after block, whether those rows are committed or drafted;
// then splits are joined in order. So a node of a tree gets the bits that plain decoding gives it, whoever computes a
// split. Keys and values are read once for all queries of a piece of a text, by the tiles of the products: as weights,
// first the keys, with a row in each lane, then the values.
#pragma once
#include <algorithm>
#include <limits>
#include <tuple>
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

// Cache rows that are listed for single nodes of a pass, in the order of its pieces: those of a node are
// `rows[starts[i]]` to `rows[starts[i + 1] - 1]`.
struct OwnRows {
  std::vector<int32_t> rows, starts;
};

// Nodes of one text that attend together. All of them see the first `shared` rows; each also sees rows of its own,
// itself the last, which stand at the positions from `shared` on.
struct Piece {
  int64_t text, first, nodes, shared;
  int64_t own_first, own_end;  // rows among which their own are
  const OwnRows* own;          // of all pieces of the pass
  int64_t starts_at;           // index in `own->starts` of the first node's

  const int32_t* own_rows(int64_t node) const { return own->rows.data() + own->starts[starts_at + node]; }
  int64_t own_count(int64_t node) const { return own->starts[starts_at + node + 1] - own->starts[starts_at + node]; }
  int64_t position(int64_t node) const { return shared + own_count(node) - 1; }
};

struct AttentionShape {
  int64_t width, groups;  // of a head; query heads that share a key head
  int64_t window;         // a token sees this many positions, its own included
};

// The splits of positions that the nodes of a piece attend to.
constexpr int64_t SPLIT = 512;
struct Splits {
  int64_t first, end;

  Splits(const AttentionShape& shape, const Piece& piece) {
    int64_t earliest = std::numeric_limits<int64_t>::max(), last = 0;
    for (int64_t node = 0; node < piece.nodes; node++) {
      earliest = std::min(earliest, piece.position(node) + 1 - shape.window);
      last = std::max(last, piece.position(node));
    }
    first = std::max<int64_t>(earliest, 0) / SPLIT, end = last / SPLIT + 1;
  }
  int64_t count() const { return end - first; }
};

// What a query has of some splits, in rows of `stride` numbers: the values by the probabilities, and behind them the
// largest score and the sum of the probabilities, of which that score's is 1.
struct Parts {
  float* data;
  int64_t columns;

  static int64_t stride(int64_t width) { return rounded_up(width, PANEL) + LANES; }
  float* values(int64_t query) const { return data + query * stride(columns); }
  float& most(int64_t query) const { return values(query)[columns]; }
  float& sum(int64_t query) const { return values(query)[columns + 1]; }

  // Joins the parts of the split behind those of all before it.
  void join(const Parts& next, int64_t queries) const {
    for (int64_t i = 0; i < queries; i++) {
      const float top = std::max(most(i), next.most(i));
      const Floats own = exponential(splat(most(i) - top)), other = exponential(splat(next.most(i) - top));
      float *to = values(i), *from = next.values(i);
      for (int64_t c = 0; c < columns; c += LANES) store(to + c, fused(load(from + c), other, load(to + c) * own));
      sum(i) = sum(i) * own[0] + next.sum(i) * other[0], most(i) = top;
    }
  }
};

// What a thread needs for attention.
class Attention {
 public:
  // Takes the queries of a piece: `query(node, group)` points to them, scaled.
  template <class Query>
  void take(const AttentionShape& shape, const Piece& piece, Query query) {
    stride_ = rounded_up(shape.width, LANES), queries_count_ = piece.nodes * shape.groups;
    float* q = queries_.reserve<float>(queries_count_ * stride_);
    for (int64_t i = 0; i < queries_count_; i++)
      memcpy(q + i * stride_, query(i / shape.groups, i % shape.groups), shape.width * 4);
  }

  // What the queries have of all splits.
  Parts attend(const AttentionShape& shape, const Piece& piece, const HeadRows& keys, const HeadRows& values) {
    const int64_t columns = rounded_up(shape.width, PANEL), room = queries_count_ * Parts::stride(shape.width);
    const Parts all{all_.reserve<float>(room), columns}, next{next_.reserve<float>(room), columns};
    const Splits splits(shape, piece);
    for (int64_t split = splits.first; split < splits.end; split++) {
      attend(shape, piece, keys, values, split, split == splits.first ? all : next);
      if (split != splits.first) all.join(next, queries_count_);
    }
    return all;
  }

  // What they have of one.
  void attend(const AttentionShape& shape, const Piece& piece, const HeadRows& keys, const HeadRows& values,
              int64_t split, const Parts& to) {
    const int64_t queries = queries_count_, columns = to.columns, begin = split * SPLIT, end = begin + SPLIT;
    const int64_t shared = std::min(piece.shared, end);  // the end of those rows here
    const float* q = queries_.as<float>();

    // scores: [block][query][64]
    float* scores = scores_.reserve<float>(SPLIT * queries);
    for (int64_t at = begin; at < shared; at += PANEL)
      score(keys, at, std::min(PANEL, shared - at), q, scores + (at - begin) * queries);
    // rows of their own: of a query those that it sees, at its positions
    const auto of = [&](int64_t i, int64_t position) -> float& {
      return scores[(position - begin) / PANEL * queries * PANEL + i * PANEL + position % PANEL];
    };
    const auto own = [&](int64_t node) {
      const int64_t rows = piece.own_count(node);
      return std::make_pair(std::clamp<int64_t>(begin - piece.shared, 0, rows),
                            std::clamp<int64_t>(end - piece.shared, 0, rows));
    };
    if (piece.shared < end)
      for (int64_t at = piece.own_first; at < piece.own_end; at += PANEL) {
        float* block = own_.reserve<float>(queries * PANEL);
        score(keys, at, std::min(PANEL, piece.own_end - at), q, block);
        for (int64_t i = 0; i < queries; i++) {
          const auto [first, last] = own(i / shape.groups);
          const int32_t* rows = piece.own_rows(i / shape.groups);
          for (int64_t seen = first; seen < last; seen++)
            if (const int64_t from = rows[seen] - at; from >= 0 && from < PANEL)
              of(i, piece.shared + seen) = block[i * PANEL + from];
        }
      }
    for (int64_t i = 0; i < queries; i++) {
      const int64_t stop = piece.position(i / shape.groups) + 1;
      std::tie(to.most(i), to.sum(i)) =
          soften(scores + i * PANEL, queries * PANEL, std::max<int64_t>(stop - shape.window, 0) - begin, stop - begin);
    }

    // results: the sum of the blocks before, and of the block that goes on
    float* block = block_.reserve<float>(queries * columns);
    for (int64_t i = 0; i < queries; i++) memset(to.values(i), 0, columns * 4);
    memset(block, 0, queries * columns * 4);
    for (int64_t at = begin; at < shared; at += PANEL) {
      read(values, at, std::min(PANEL, shared - at), scores + (at - begin) * queries, block);
      if (at + PANEL <= shared)
        for (int64_t i = 0; i < queries; i++) add(to.values(i), block + i * columns, columns);
    }
    float* value = values_.reserve<float>(columns);
    memset(value, 0, columns * 4);
    for (int64_t i = 0; i < queries; i++) {
      const auto [first, last] = own(i / shape.groups);
      const int32_t* rows = piece.own_rows(i / shape.groups);
      for (int64_t seen = first; seen < last; seen++) {
        const int64_t position = piece.shared + seen;
        if (position % PANEL == 0) add(to.values(i), block + i * columns, columns);
        values.read(rows[seen], 1, value, 0);
        const Floats weight = splat(of(i, position));
        for (int64_t c = 0; c < columns; c += LANES) {
          float* into = block + i * columns + c;
          store(into, fused(load(value + c), weight, load(into)));
        }
      }
      add(to.values(i), block + i * columns, columns);
    }
  }

 private:
  Buffer queries_, scores_, own_, block_, keys_, rows_, values_, all_, next_;
  int64_t queries_count_ = 0, stride_ = 0;

  // Scores `[queries][64]` of rows of keys.
  void score(const HeadRows& keys, int64_t row, int64_t count, const float* q, float* to) {
    const int64_t width = keys.width, padded = rounded_up(width, 2 * LANES);
    float* turned = keys_.reserve<float>(padded * PANEL);
    for (int64_t at = 0; at < rounded_up(count, LANES); at += LANES) {
      const auto word = [&](int lane, int64_t first) {  // of 32 bits: a number, or two of bfloat16
        if (at + lane >= count) return Floats{};
        return load_some((const float*)(keys.data + (row + at + lane) * keys.row_bytes()) + first,
                         keys.row_bytes() / 4 - first);
      };
      for (int64_t first = 0; first < keys.row_bytes() / 4; first += LANES) {
        Floats square[LANES];
        UNROLL
        for (int lane = 0; lane < LANES; lane++) square[lane] = word(lane, first);
        transpose(square);
        float* of = turned + at;
        UNROLL
        for (int lane = 0; lane < LANES; lane++) {
          if (keys.format == Format::float32) {
            store(of + (first + lane) * PANEL, square[lane]);
          } else {
            store(of + 2 * (first + lane) * PANEL, (Ints)square[lane] << 16);
            store(of + (2 * (first + lane) + 1) * PANEL, (Ints)square[lane] & splat((int32_t)0xffff0000));
          }
        }
      }
    }
    tiles((const char*)turned, PANEL * 4, (const char*)q, stride_ * 4, width, to);
  }

  // Adds `[queries][64]` probabilities times rows of values to `[queries][columns]`, which begin anew.
  void read(const HeadRows& values, int64_t row, int64_t count, const float* probabilities, float* to) {
    const int64_t columns = rounded_up(values.width, PANEL);
    const char* from = values.data + row * values.row_bytes();
    if (values.format != Format::float32 || values.width != columns) {
      float* rows = rows_.reserve<float>(PANEL * columns);
      values.read(row, count, rows, columns);
      from = (const char*)rows;
    }
    if (columns == PANEL) return tiles(from, PANEL * 4, (const char*)probabilities, PANEL * 4, count, to);
    float* part = own_.reserve<float>(queries_count_ * PANEL);
    for (int64_t c = 0; c < columns; c += PANEL) {
      tiles(from + c * 4, columns * 4, (const char*)probabilities, PANEL * 4, count, part);
      for (int64_t i = 0; i < queries_count_; i++) memcpy(to + i * columns + c, part + i * PANEL, PANEL * 4);
    }
  }

  void tiles(const char* weights, int64_t apart, const char* rows, int64_t stride, int64_t words, float* to) const {
    const Blocks<Format::float32> blocks{queries_count_};
    for (int64_t block = 0; block < blocks.count; block++) {
      const int64_t start = blocks.start(block), end = blocks.start(block + 1);
      block_tile<Format::float32>(
          end - start, 0, {weights, apart, rows + start * stride, stride, words, weights, to + start * PANEL, true});
    }
  }

  // The largest score and the sum of e^(score - the largest), which take the scores' place, 0 outside `[first, end)`. A
  // query's blocks lie `apart` numbers from each other.
  static std::pair<float, float> soften(float* scores, int64_t apart, int64_t first, int64_t end) {
    const float none = -std::numeric_limits<float>::max();
    Floats most = splat(none);
    for (int64_t block = 0; block < SPLIT / PANEL; block++) {
      float* own = scores + block * apart;
      for (int64_t i = 0; i < PANEL; i++)
        if (block * PANEL + i < first || block * PANEL + i >= end) own[i] = none;
      for (int64_t i = 0; i < PANEL; i += LANES) most = larger(load(own + i), most);
    }
    const float top = largest(most);
    Floats all{};
    for (int64_t block = 0; block < SPLIT / PANEL; block++)
      for (int64_t i = 0; i < PANEL; i += LANES) {
        float* own = scores + block * apart + i;
        const Floats power = top == none ? Floats{} : exponential(load(own) - top);
        store(own, power);
        all += power;
      }
    return {top, sum(all)};
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
