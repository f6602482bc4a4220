// Products of rows with weights whose inputs have a scale by groups (`groups.h`).
//
// A group's products are added as integers, exactly. Its scale then joins them to the part of 128 inputs that a row has
// one unit for, in order, and the part joins the sum. So nothing about a sum depends on how many rows there are.
#pragma once
#include "products.h"

namespace drafttree {

// Not unrolled: where the compiler sees all sums of integers of a group, it makes all products before it adds any, and
// keeps them in memory (AVX2, GCC 12: 1.2 to 1.4 times the time at 4 rows).
#define ROLLED _Pragma("GCC unroll 1")
constexpr int64_t CHUNK_GROUPS = INT8_CHUNK * 4 / GROUP;  // groups of 128 inputs
// Bytes that weights are called ahead. What is best depends on how long a group takes: 8 KB at 64 bytes a vector (a pass
// over one row at 300 M: 4.66 ms, with 16 KB 5.09), 16 KB at 32.
constexpr int64_t CALLED_AHEAD = WIDTH == 64 ? 8192 : 16384;

// Bytes times bytes of a row, in pairs of 16 bits: unsigned ones, and their sums in 32 bits.
#if defined(__AVX512BW__)
INLINE Ints pairs(Ints weights, Ints row) { return (Ints)_mm512_maddubs_epi16((__m512i)weights, (__m512i)row); }
INLINE Ints add_pairs(Ints a, Ints b) { return (Ints)_mm512_add_epi16((__m512i)a, (__m512i)b); }
INLINE Ints whole_pairs(Ints a) { return (Ints)_mm512_madd_epi16((__m512i)a, _mm512_set1_epi16(1)); }
INLINE Ints without_sign(Ints a) { return (Ints)_mm512_abs_epi8((__m512i)a); }
INLINE Ints with_sign_of(Ints a, Ints of) {
  return (Ints)_mm512_mask_sub_epi8((__m512i)a, _mm512_movepi8_mask((__m512i)of), _mm512_setzero_si512(), (__m512i)a);
}
#elif defined(__AVX2__)
INLINE Ints pairs(Ints weights, Ints row) { return (Ints)_mm256_maddubs_epi16((__m256i)weights, (__m256i)row); }
INLINE Ints add_pairs(Ints a, Ints b) { return (Ints)_mm256_add_epi16((__m256i)a, (__m256i)b); }
INLINE Ints whole_pairs(Ints a) { return (Ints)_mm256_madd_epi16((__m256i)a, _mm256_set1_epi16(1)); }
INLINE Ints without_sign(Ints a) { return (Ints)_mm256_abs_epi8((__m256i)a); }
INLINE Ints with_sign_of(Ints a, Ints of) { return (Ints)_mm256_sign_epi8((__m256i)a, (__m256i)of); }
#endif

// An even word of four inputs and the odd one behind it times a row's, added. Numbers have 4 to 6 bits.
template <int BITS>
struct FewBits {
  // A group's pairs of numbers of four bits fit into 16 bits: 8 * 2 * 15 * 127; of six bits those of two words do.
  static constexpr bool in_pairs = BITS == 4 && HAS_PAIRS_OF_BYTES && !HAS_BYTES;

  INLINE Ints add(Ints sum, Ints even, Ints odd, const char* row) {
#if defined(__AVX512VNNI__)
    sum = (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)even, (__m512i)broadcast(row));
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)odd, (__m512i)broadcast(row + GROUP_ROW_WORD));
#elif defined(__AVX2__)
    const Ints first = pairs(even, broadcast(row)), second = pairs(odd, broadcast(row + GROUP_ROW_WORD));
    if constexpr (in_pairs) return add_pairs(add_pairs(sum, first), second);
    return sum + whole_pairs(add_pairs(first, second));
#else
    sum = Word<Format::int8>::add(sum, even, row);
    return Word<Format::int8>::add(sum, odd, row + GROUP_ROW_WORD);
#endif
  }
  INLINE Ints whole(Ints sum) {
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
    if constexpr (in_pairs) return whole_pairs(sum);
#endif
    return sum;
  }
};
// Numbers of eight bits, which count from a constant.
template <int ZERO>
struct Octets {
  // Whether the sums are those of numbers that count from 0 already: two products of numbers up to 255 do not fit into
  // 16 bits, of signed ones they do.
  static constexpr bool counts_from_zero = HAS_PAIRS_OF_BYTES && !HAS_BYTES && ZERO == 128;

  INLINE Ints add(Ints sum, Ints weights, const char* row) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)broadcast(row));
#elif defined(__AVX2__)
    if constexpr (!counts_from_zero) return sum + whole_pairs(pairs(weights, broadcast(row)));
    const Ints numbers = weights ^ (int32_t)0x80808080;
    return sum + whole_pairs(pairs(without_sign(numbers), with_sign_of(broadcast(row), numbers)));
#else
    return Word<Format::int8>::add(sum, weights, row);
#endif
  }
};

// A tile's part of 128 inputs, of all 64 outputs. All strides are in bytes.
struct GroupTile {
  const char *weights, *outer;  // its first group, and what the scales of that and the others are multiplied with
  int64_t groups;
  const char* rows;
  int64_t stride;
  const char* ahead;  // weights that are called from memory meanwhile, as many lines a group as `called`
  int64_t called;
  float* sums;  // [rows][64 outputs]
  bool first;   // whether the sums begin here, else they go on
  // of the part: the sums of a row's numbers, what 1 stands for in it, and how far apart those of rows are
  const int32_t* row_sums;
  const float* units;
  int64_t chunks;
};

// ROWS rows by VECTORS vectors of outputs, until all outputs have passed.
template <class Layout, int ROWS, int VECTORS>
static __attribute__((noinline)) void group_tile(const GroupTile& at) {
  typedef typename Layout::Scales Scales;
  typedef FewBits<Layout::BITS> Few;
  typedef Octets<Scales::zero> Eight;
  constexpr int BITS = Layout::BITS, SPANS = Scales::SPANS, WORDS = GROUP / 4 / SPANS;  // words of a span
  constexpr int PASSES = PANEL / LANES / VECTORS;
  constexpr bool counts_from_zero = Scales::zero == 0 || (BITS == 8 && Eight::counts_from_zero);
  const Ints lower = splat(0x0f0f0f0f), fifths = splat(BITS == 5 ? 0x10101010 : 0x30303030);
  const int64_t stride = at.stride;
  for (int pass = 0; pass < PASSES; pass++) {
    const int64_t from = pass * VECTORS * LANES;
    const int64_t first_line = at.called * pass / PASSES, last_line = at.called * (pass + 1) / PASSES;
    Floats part[ROWS][VECTORS] = {};
    const char *weights = at.weights, *rows = at.rows, *ahead = at.ahead;
    for (int64_t group = 0; group < at.groups; group++, weights += Layout::BYTES, ahead += Layout::BYTES) {
      for (int64_t line = first_line; line < last_line; line++) __builtin_prefetch(ahead + line * 64, 0, 2);
      const char* numbers = weights + Scales::HEAD + from * 4;
      UNROLL
      for (int span = 0; span < SPANS; span++) {
        Ints sum[ROWS][VECTORS] = {};
        if constexpr (BITS < 8) {
          Ints upper[VECTORS];  // the bits above the fourth of the words to come
          if constexpr (BITS > 4) {
            UNROLL
            for (int v = 0; v < VECTORS; v++)
              upper[v] = load<Ints>(weights + Layout::UPPER + span * GROUP_PANEL * 4 + from * 4 + v * WIDTH);
          }
          ROLLED
          for (int step = 0; step < WORDS / 2; step++, numbers += GROUP_PANEL * 4, rows += 2 * GROUP_ROW_WORD) {
            Ints even[VECTORS], odd[VECTORS];
            UNROLL
            for (int v = 0; v < VECTORS; v++) {
              const Ints both = load<Ints>(numbers + v * WIDTH);
              even[v] = both & lower, odd[v] = (Ints)((Unsigneds)both >> 4) & lower;
              if constexpr (BITS > 4) {
                even[v] |= upper[v] << 4 & fifths, odd[v] |= upper[v] << (8 - BITS) & fifths;
                upper[v] = (Ints)((Unsigneds)upper[v] >> 2 * (BITS - 4));
              }
            }
            UNROLL
            for (int row = 0; row < ROWS; row++) UNROLL
            for (int v = 0; v < VECTORS; v++) sum[row][v] = Few::add(sum[row][v], even[v], odd[v], rows + row * stride);
          }
        } else {
          ROLLED
          for (int word = 0; word < WORDS; word++, numbers += GROUP_PANEL * 4, rows += GROUP_ROW_WORD) {
            Ints weight[VECTORS];
            UNROLL
            for (int v = 0; v < VECTORS; v++) weight[v] = load<Ints>(numbers + v * WIDTH);
            UNROLL
            for (int row = 0; row < ROWS; row++) UNROLL
            for (int v = 0; v < VECTORS; v++) sum[row][v] = Eight::add(sum[row][v], weight[v], rows + row * stride);
          }
        }
        Floats scale[VECTORS];
        UNROLL
        for (int v = 0; v < VECTORS; v++) scale[v] = Scales::scale(weights, at.outer, from + v * LANES, span);
        const int32_t* row_sums = at.row_sums + (SPANS == 2 ? group * SPANS + span : Rows::SIXTEENTHS + group);
        UNROLL
        for (int row = 0; row < ROWS; row++) {
          const Ints row_sum = broadcast((const char*)(row_sums + row * at.chunks * Rows::CHUNK_SUMS));
          UNROLL
          for (int v = 0; v < VECTORS; v++) {
            Ints whole = Few::whole(sum[row][v]);
            if constexpr (!counts_from_zero) whole -= row_sum * Scales::zero;
            if constexpr (Scales::HAS_ZEROS) whole -= Scales::zeros(weights, from + v * LANES) * row_sum;
            part[row][v] = fused(__builtin_convertvector(whole, Floats), scale[v], part[row][v]);
            if constexpr (Scales::HAS_MINS) {
              const Floats min = Scales::min(weights, at.outer, from + v * LANES);
              part[row][v] = fused(min, __builtin_convertvector(row_sum, Floats), part[row][v]);
            }
          }
        }
      }
    }
    UNROLL
    for (int row = 0; row < ROWS; row++) UNROLL
    for (int v = 0; v < VECTORS; v++) {
      float* to = at.sums + row * PANEL + from + v * LANES;
      const Floats unit = splat(at.units[row * at.chunks]);
      store(to, at.first ? part[row][v] * unit : fused(part[row][v], unit, load(to)));
    }
  }
}

template <class Layout>
static void group_block(int64_t rows, const GroupTile& at) {
  constexpr bool many = WIDTH == 64;  // registers: 32, else 16
  switch (rows) {
    case 1:
      return group_tile<Layout, 1, many || WIDTH == 32 ? 4 : 2>(at);
    case 2:
      return group_tile<Layout, 2, many ? 4 : 2>(at);
    case 3:
      return group_tile<Layout, 3, 2>(at);
    case 4:
      return group_tile<Layout, 4, 2>(at);
#if defined(__AVX512F__)  // elsewhere no block has more rows
    case 5:
      return group_tile<Layout, 5, 2>(at);
    default:
      return group_tile<Layout, 6, 2>(at);
#endif
  }
}

template <class Layout>
static void multiply_groups(const Panels& weight, const RowsView& rows, Share share, Destination to, const char* next) {
  constexpr int64_t most = group_of(Format::int8), lines = Layout::BYTES / 64;
  alignas(64) float sums[most * PANEL];
  const char* stop = weight.panel(share.end);
  const int64_t groups = weight.inputs / GROUP;
  for (int64_t group_of_rows = 0; group_of_rows < rows.count; group_of_rows += most) {
    const int64_t count = std::min(most, rows.count - group_of_rows);
    const bool is_last = group_of_rows + count == rows.count;
    const Blocks<Format::q4_0> blocks{count};
    for (int64_t panel = share.first; panel < share.end; panel++) {
      const char* own = weight.panel(panel);
      for (int64_t group = 0; group < groups; group += CHUNK_GROUPS) {
        const char* weights = own + Layout::at(group);
        const char* ahead = weights + CALLED_AHEAD;
        if (ahead >= stop) ahead = next && is_last ? next + (ahead - stop) : weights;
        const int64_t chunk = group / CHUNK_GROUPS;
        for (int64_t block = 0; block < blocks.count; block++) {
          const int64_t start = blocks.start(block), end = blocks.start(block + 1), row = group_of_rows + start;
          // blocks among which the lines of a group are dealt
          const int64_t shares = std::min<int64_t>(blocks.count, lines);
          const int64_t from = lines * std::min(block, shares) / shares,
                        until = lines * std::min(block + 1, shares) / shares;
          const int64_t first = row * rows.chunks + chunk;
          group_block<Layout>(
              end - start,
              {weights, own + Layout::outer(group), std::min(CHUNK_GROUPS, groups - group),
               rows.row(row) + group * (GROUP / 4) * GROUP_ROW_WORD, rows.stride, ahead + from * 64,
               until - from, sums + start * PANEL, group == 0,
               rows.sums + first * Rows::CHUNK_SUMS, rows.units + first, rows.chunks});
        }
      }
      for (int64_t row = 0; row < count; row++) {
        float* out = to.out + (group_of_rows + row) * to.stride + panel * PANEL;
        for (int v = 0; v < PANEL; v += LANES) {
          const Floats bias = load(weight.biases.as<float>() + panel * PANEL + v);
          const Floats product = to.by * (load(sums + row * PANEL + v) + bias);
          store(out + v, to.adds ? load(out + v) + product : product);
        }
      }
    }
  }
}

}  // namespace drafttree
