// Products of rows with a packed weight.
//
// A tile is some rows by some vectors of outputs, with all its sums in registers. While a tile is summed it calls the
// weights of the next chunk from memory into the second cache; where several blocks of rows pass over one chunk the
// calls are spread over them, so that memory never idles.
#pragma once
#include "panels.h"

namespace drafttree {

// Rows of a tile. With 32 registers, 6 rows by 4 vectors leave room for the weights; with 16, fewer vectors at once. A
// sum has to wait for both products of a word where it takes two: then 4 rows by 2 vectors are faster.
constexpr int64_t block_of(Format format) {
  return uses_amx(format) ? Amx::ROWS : WIDTH < 64 && (row_word(format) == 8 || has_groups(format)) ? 4 : 6;
}
// Rows whose sums of a panel are kept at once: 16 KB; with matrix instructions 64 KB, since 64 rows take less time than
// their weights take from memory.
constexpr int64_t group_of(Format format) { return uses_amx(format) ? 256 : 64; }
constexpr int LINES = PANEL * 4 / 64;  // cache lines of a step

// Rows cut into those of tiles: as alike as they can be, or all whole but the last.
template <Format format>
struct Blocks {
  int64_t rows, count = (rows + block_of(format) - 1) / block_of(format);

  int64_t start(int64_t block) const {
    return uses_amx(format) ? std::min(rows, block * block_of(format)) : rows * block / count;
  }
};

// One word of weights times one word of a row, added to the sum in each lane. `row` points to the row's word.
template <Format format>
struct Word;

template <>
struct Word<Format::float32> {
  typedef Floats Sum;
  INLINE Sum add(Sum sum, Ints weights, const char* row) {
    return fused((Floats)weights, (Floats)broadcast(row), sum);
  }
};
template <>
struct Word<Format::bfloat16> {
  typedef Floats Sum;
  INLINE Sum add(Sum sum, Ints weights, const char* row) {
#if defined(__AVX512BF16__)
    return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)broadcast(row));
#else
    sum = fused((Floats)(weights << 16), (Floats)broadcast(row), sum);
    return fused((Floats)(weights & (int32_t)0xffff0000), (Floats)broadcast(row + 4), sum);
#endif
  }
};
template <>
struct Word<Format::int8> {
  typedef Ints Sum;
  INLINE Sum add(Sum sum, Ints weights, const char* row) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)broadcast(row));
#else
    // pairs of 16 bits: of bytes at once, two products could be more than 16 bits hold
    const Ints even = weights & 0x00ff00ff, odd = (Ints)((Unsigned)weights >> 8) & 0x00ff00ff;
    return sum + pairs(even, broadcast(row)) + pairs(odd, broadcast(row + 4));
#endif
  }

 private:
  typedef uint32_t Unsigned __attribute__((vector_size(WIDTH)));
  INLINE Ints pairs(Ints a, Ints b) {
#if defined(__AVX512BW__)
    return (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    return ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
  }
};

// A tile's part of a chunk. All strides are in bytes.
struct Tile {
  const char* weights;
  int64_t apart;  // from one word of the weights to the next
  const char* rows;
  int64_t stride, words;
  const char* ahead;  // weights that are called from memory meanwhile, as many lines a word as `called`
  float* sums;        // [rows][64 outputs]
  bool first;         // whether the sums begin here, else they go on
  // of int8 rows: what the chunk's sum starts with, what 1 stands for in it, and how far apart those of rows are
  const int32_t* starts = nullptr;
  const float* units = nullptr;
  int64_t chunks = 0;
};

// A chunk's sums of a row join those before.
template <Format format>
INLINE void join(const Tile& at, int64_t row, int64_t output, typename Word<format>::Sum sum) {
  float* to = at.sums + row * PANEL + output;
  Floats part;
  if constexpr (format == Format::int8) part = __builtin_convertvector(sum, Floats) * at.units[row * at.chunks];
  else part = sum;
  store(to, at.first ? part : load(to) + part);
}

// ROWS rows by VECTORS vectors of outputs; CALLED cache lines are called at each word.
// Not inlined: the compiler then keeps some of the sums in memory (int8, 64 rows, GCC 12: 70 ms instead of 46).
template <Format format, int ROWS, int VECTORS, int CALLED>
static __attribute__((noinline)) void tile(const Tile& at) {
  typedef typename Word<format>::Sum Sum;
  Sum sum[ROWS][VECTORS];
  UNROLL
  for (int row = 0; row < ROWS; row++) UNROLL
  for (int v = 0; v < VECTORS; v++) {
    if constexpr (format == Format::int8) sum[row][v] = splat(at.starts[row * at.chunks]);
    else sum[row][v] = Sum{};
  }
  const char *weights = at.weights, *rows = at.rows, *ahead = at.ahead;
  const int64_t apart = at.apart, stride = at.stride;
  for (int64_t word = 0; word < at.words; word++, weights += apart, ahead += apart, rows += row_word(format)) {
    Ints weight[VECTORS];
    UNROLL
    for (int v = 0; v < VECTORS; v++) weight[v] = load<Ints>(weights + v * WIDTH);
    UNROLL
    for (int line = 0; line < CALLED; line++) __builtin_prefetch(ahead + line * 64, 0, 2);
    UNROLL
    for (int row = 0; row < ROWS; row++) UNROLL
    for (int v = 0; v < VECTORS; v++)
      sum[row][v] = Word<format>::add(sum[row][v], weight[v], rows + row * stride);
  }
  UNROLL
  for (int row = 0; row < ROWS; row++) UNROLL
  for (int v = 0; v < VECTORS; v++) join<format>(at, row, v * LANES, sum[row][v]);
}

// Tiles until all 64 outputs have passed. Each calls its share of the lines: called at once, they would wait for each
// other, and memory would idle while the others pass.
template <Format format, int ROWS, int VECTORS, int CALLED, int PASS = 0>
static void passing_tiles(Tile at) {
  constexpr int PASSES = PANEL / LANES / VECTORS;
  constexpr int first = CALLED * PASS / PASSES, last = CALLED * (PASS + 1) / PASSES;
  Tile own = at;
  own.ahead += first * 64;
  tile<format, ROWS, VECTORS, last - first>(own);
  if constexpr (PASS + 1 < PASSES) {
    at.weights += VECTORS * WIDTH, at.sums += VECTORS * LANES;
    passing_tiles<format, ROWS, VECTORS, CALLED, PASS + 1>(at);
  }
}

// A tile of all 64 outputs.
template <Format format, int ROWS, int CALLED>
static void panel_tile(const Tile& at) {
  constexpr bool many = WIDTH == 64;  // registers: 32, else 16
  constexpr bool splits = row_word(format) == 8;
  constexpr int few = ROWS == 1 ? 4 : format == Format::float32 || ROWS <= 4 ? 2 : 1;
  passing_tiles<format, ROWS, many ? (splits ? 2 : 4) : WIDTH == 32 ? few : std::min(few, 2), CALLED>(at);
}

template <Format format, int ROWS>
static void calling_tile(int called, const Tile& at) {
  switch (called) {
    case 0:
      return panel_tile<format, ROWS, 0>(at);
    case 1:
      return panel_tile<format, ROWS, 1>(at);
    case 2:
      return panel_tile<format, ROWS, 2>(at);
    default:
      return panel_tile<format, ROWS, LINES>(at);
  }
}

#if defined(__AMX_TILE__)
// A tile of all 64 outputs by matrix instructions, of 16 rows whether they are there or not: what lies behind the rows
// is read, and what lies behind their sums of bfloat16 written. Registers 0 to 3 are sums, 4 rows, 5 to 7 weights. An
// instruction sums 16 words by themselves and then adds them, so no chunk of bfloat16 is longer, and its sums go on
// from where those before are.
template <Format format>
static __attribute__((noinline)) void amx_tile(int64_t rows, int called, const Tile at) {
  constexpr int64_t apart = PANEL * 4;
  if (format == Format::int8 || at.first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, at.sums, apart);
    _tile_loadd(1, at.sums + LANES, apart);
    _tile_loadd(2, at.sums + 2 * LANES, apart);
    _tile_loadd(3, at.sums + 3 * LANES, apart);
  }
  const char *weights = at.weights, *own = at.rows, *ahead = at.ahead;
  const auto call = [&] {
    for (int word = 0; word < Amx::WORDS / LINES; word++, ahead += apart)
      for (int line = 0; line < called; line++) __builtin_prefetch(ahead + line * 64, 0, 2);
  };
#define ADD(sums, weight, vector)                                            \
  _tile_loadd(weight, weights + vector * WIDTH, apart);                      \
  if constexpr (format == Format::bfloat16) _tile_dpbf16ps(sums, 4, weight); \
  else _tile_dpbsud(sums, 4, weight);                                        \
  call()
  for (int64_t word = 0; word < at.words; word += Amx::WORDS, weights += Amx::WORDS * apart, own += Amx::WORDS * 4) {
    _tile_loadd(4, own, at.stride);
    ADD(0, 5, 0);
    ADD(1, 6, 1);
    ADD(2, 7, 2);
    ADD(3, 5, 3);
  }
#undef ADD
  alignas(64) int32_t whole[format == Format::int8 ? Amx::ROWS * PANEL : 1];
  char* to = format == Format::int8 ? (char*)whole : (char*)at.sums;
  _tile_stored(0, to, apart);
  _tile_stored(1, to + WIDTH, apart);
  _tile_stored(2, to + 2 * WIDTH, apart);
  _tile_stored(3, to + 3 * WIDTH, apart);
  if constexpr (format == Format::int8)
    for (int64_t row = 0; row < rows; row++)
      for (int64_t output = 0; output < PANEL; output += LANES)
        join<format>(at, row, output, load<Ints>(whole + row * PANEL + output) + at.starts[row * at.chunks]);
}
#endif

template <Format format>
static void block_tile(int64_t rows, int called, const Tile& at) {
#if defined(__AMX_TILE__)
  if constexpr (uses_amx(format)) return amx_tile<format>(rows, called, at);
  else
#endif
    switch (rows) {
      case 1:
        return calling_tile<format, 1>(called, at);
      case 2:
        return calling_tile<format, 2>(called, at);
      case 3:
        return calling_tile<format, 3>(called, at);
      case 4:
        return calling_tile<format, 4>(called, at);
      case 5:
        return calling_tile<format, 5>(called, at);
      default:
        return calling_tile<format, 6>(called, at);
    }
}

// Where a product goes: `out[row * stride + output] = by * (product + bias)`, or added to what is there.
struct Destination {
  float* out;
  int64_t stride;
  bool adds = false;
  float by = 1;
};

// The panels of a weight that a thread computes, of all or of some.
struct Share {
  int64_t first, end;
  Share(const Panels& weight, int thread, int threads) : Share(0, weight.count, thread, threads) {}
  Share(int64_t from, int64_t count, int thread, int threads)
      : first(from + count * thread / threads), end(from + count * (thread + 1) / threads) {}
};

template <Format format>
static void multiply(const Panels& weight, const RowsView& rows, Share share, Destination to, const char* next) {
  constexpr int64_t chunk = chunk_of(format), most = group_of(format);
  alignas(64) float sums[most * PANEL];
  const char* stop = weight.panel(share.end);
  for (int64_t group = 0; group < rows.count; group += most) {
    const int64_t count = std::min(most, rows.count - group);
    const Blocks<format> blocks{count};
    for (int64_t panel = share.first; panel < share.end; panel++) {
      for (int64_t word = 0; word < weight.words; word += chunk) {
        const char* weights = weight.panel(panel) + word * PANEL * 4;
        const char* ahead = weights + CHUNK * PANEL * 4;
        if (ahead >= stop) ahead = next && group + count == rows.count ? next + (ahead - stop) : weights;
        for (int64_t block = 0; block < blocks.count; block++) {
          const int64_t start = blocks.start(block), end = blocks.start(block + 1), row = group + start;
          // blocks among which the lines of a word are dealt
          const int64_t shares = std::min<int64_t>(blocks.count, LINES);
          const int64_t from = LINES * std::min(block, shares) / shares,
                        until = LINES * std::min(block + 1, shares) / shares;
          const int64_t own = row * rows.chunks + word / chunk;
          block_tile<format>(end - start, until - from,
                             {weights, PANEL * 4, rows.row(row) + word * row_word(format), rows.stride,
                              std::min(chunk, weight.words - word), ahead + from * 64, sums + start * PANEL, word == 0,
                              rows.starts + own, rows.units + own, rows.chunks});
        }
      }
      for (int64_t row = 0; row < count; row++) {
        float* out = to.out + (group + row) * to.stride + panel * PANEL;
        for (int v = 0; v < PANEL; v += LANES) {
          Floats product = load(sums + row * PANEL + v);
          if constexpr (format == Format::int8) product *= load(weight.scales.as<float>() + panel * PANEL + v);
          product = to.by * (product + load(weight.biases.as<float>() + panel * PANEL + v));
          store(out + v, to.adds ? load(out + v) + product : product);
        }
      }
    }
  }
}

}  // namespace drafttree
