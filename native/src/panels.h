// A weight packed once for products that run at the speed of memory, and the rows it is multiplied with.
//
//   [panel of 64 outputs][word of 32 bits along the inputs][64 outputs]
//
// A word is one float32, two bfloat16 or four int8. A vector of words holds as many outputs, so an output is summed in
// one lane, over the inputs in order: nothing is ever added across lanes, and nothing about a sum depends on how many
// rows there are. Outputs and inputs are padded with zeros to whole panels and words. An int8 is stored plus 128, since
// the instruction multiplies unsigned by signed bytes. 16 words of 16 outputs are what a matrix instruction takes;
// where there are any, they compute all products of bfloat16 and int8, and words are padded to 16.
#pragma once
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "amx.h"
#include "blocks.h"
#include "memory.h"
#include "team.h"
#include "vectors.h"

namespace drafttree {

// Those behind int8 have their inputs in groups (`groups.h`), and are blocks of the same names outside (`blocks.h`).
enum class Format { float32, bfloat16, int8, q4_0, q4_1, q4_zero, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0 };

constexpr int64_t PANEL = 64;
// Words of a panel that are summed by themselves before they join the sum: one running sum over all inputs had 3 to 7
// times the error of MKL's. 16 KB: they stay in the first cache while all rows pass over them.
constexpr int64_t CHUNK = 64;
// Words of an int8 weight that are summed by themselves: 128 inputs. A row has a scale for each of them, since some
// channels of a language model are far larger than others, and with one scale for the whole row they decide how the
// rest is rounded. Over 143,080 tokens of the books' test set, perplexity against float32 and best tokens unchanged,
// with one scale per output: rows as they are -0.004 +- 0.010 %, 98.9 %; a scale per row +0.064 +- 0.023 %, 97.6 %, per
// 128 inputs +0.028 +- 0.018 %, 98.1 %; both per 32 inputs, as q8_0 has them, +0.009 +- 0.012 %, 98.7 %. With one
// channel of each norm 30 times as large (14,308 tokens): per row +0.97 %, per 128 inputs +0.54 %. A chunk costs 2 more
// instructions for 32, one of 32 inputs a third of the time.
constexpr int64_t INT8_CHUNK = 32;
constexpr bool has_groups(Format format) { return format > Format::int8; }
constexpr int64_t chunk_of(Format format) { return format == Format::int8 ? INT8_CHUNK : CHUNK; }
// Whether matrix instructions compute the products of a format.
constexpr bool uses_amx(Format format) {
  return HAS_AMX && (format == Format::bfloat16 || format == Format::int8);
}

// Whether products with weights of both formats take the same rows.
constexpr bool reads_alike(Format a, Format b) { return a == b || (has_groups(a) && has_groups(b)); }

// Calls a function with the blocks of a format whose inputs have groups.
template <class Call>
auto visit_blocks(Format format, Call call) {
  switch (format) {
    case Format::q4_0:
      return call(Q4_0());
    case Format::q4_1:
      return call(Q4_1());
    case Format::q4_zero:
      return call(Q4_ZERO());
    case Format::q4_k:
      return call(Q4_K());
    case Format::q5_0:
      return call(Q5_0());
    case Format::q5_1:
      return call(Q5_1());
    case Format::q5_k:
      return call(Q5_K());
    case Format::q6_k:
      return call(Q6_K());
    case Format::q8_0:
      return call(Q8_0());
    default:
      throw std::logic_error("a format has no groups");
  }
}

inline int64_t inputs_of_word(Format format) {
  return format == Format::float32 ? 1 : format == Format::bfloat16 ? 2 : 4;
}
// Bytes of a row that one word of a weight is multiplied with. Where no instruction takes a word as it is, rows have
// what the instructions that there are take: of two bfloat16 two float32, of four bytes two pairs of 16 bits, the even
// ones and the odd ones. To make these of a word in every product would take as long as the product.
constexpr int64_t GROUP_ROW_WORD = HAS_BYTES || HAS_PAIRS_OF_BYTES ? 4 : 8;
constexpr int64_t row_word(Format format) {
  if (uses_amx(format)) return 4;
  if (has_groups(format)) return GROUP_ROW_WORD;
  return (format == Format::bfloat16 && !HAS_BFLOAT16) || (format == Format::int8 && !HAS_BYTES) ? 8 : 4;
}
inline int64_t rounded_up(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

struct Panels {
  Format format = Format::float32;
  int64_t outputs = 0, inputs = 0, words = 0, count = 0, panel_bytes = 0;
  Buffer data, scales, biases;  // scales: of the outputs of an int8 weight, what 1 stands for; else and without: zeros

  const char* panel(int64_t index) const { return data.as<char>() + index * panel_bytes; }
  size_t bytes() const { return data.size() + scales.size() + biases.size(); }

  // Packs outputs, of each the numbers as they lie in memory, on so many threads. Scales and biases are left to be
  // filled in.
  static Panels pack(int threads, Format format, const std::vector<const char*>& outputs, int64_t inputs) {
    Panels made;
    made.format = format, made.outputs = outputs.size(), made.inputs = inputs;
    const int64_t per = inputs_of_word(format);
    made.words = rounded_up((inputs + per - 1) / per, uses_amx(format) ? Amx::WORDS : 1);
    if (has_groups(format))
      made.panel_bytes =
          visit_blocks(format, [&](auto block) { return decltype(block)::Layout::panel_bytes(inputs / GROUP); });
    else made.panel_bytes = made.words * PANEL * 4;
    made.count = (made.outputs + PANEL - 1) / PANEL;
    // a step calls lines one chunk ahead, also behind the end
    char* data = made.data.reserve<char>(made.count * made.panel_bytes + CHUNK * PANEL * 4);
    for (Buffer* each : {&made.scales, &made.biases})
      memset(each->reserve<float>(made.count * PANEL), 0, made.count * PANEL * 4);
    Team::run(
        threads, [] {},
        [&](Team& team, int thread) {
          for (int64_t panel = made.count * thread / team.size(); panel < made.count * (thread + 1) / team.size();
               panel++) {
            char* to = data + panel * made.panel_bytes;
            if (has_groups(format))
              visit_blocks(format, [&](auto block) { made.pack_blocks<decltype(block)>(panel, outputs, to); });
            else made.pack_panel(panel, outputs, (uint32_t*)to);
          }
        });
    return made;
  }

  // Bytes of an output as it lies in memory.
  static int64_t row_bytes(Format format, int64_t inputs) {
    if (!has_groups(format)) return inputs * 4 / inputs_of_word(format);
    return visit_blocks(format, [&](auto block) { return inputs / GROUP / block.GROUPS * block.BYTES; });
  }

  // The numbers of an output, those of quantised weights times what 1 stands for.
  void read(int64_t output, float* to) const {
    if (has_groups(format))
      return visit_blocks(format, [&](auto block) {
        typedef typename decltype(block)::Layout Layout;
        for (int64_t group = 0; group < inputs / GROUP; group++)
          Layout::values(Layout::read(panel(output / PANEL), group, output % PANEL), to + group * GROUP);
      });
    const int64_t per = inputs_of_word(format);
    const uint32_t* words = (const uint32_t*)panel(output / PANEL) + output % PANEL;
    const float unit = scales.as<float>()[output];
    for (int64_t input = 0; input < inputs; input++) {
      const uint32_t word = words[input / per * PANEL];
      if (format == Format::float32) memcpy(to + input, &word, 4);
      else if (format == Format::bfloat16) to[input] = widened(uint16_t(word >> input % 2 * 16));
      else to[input] = unit * (int32_t(word >> input % 4 * 8 & 255) - 128);
    }
  }

  // Some outputs as their weight had them, `[count][inputs]`, on so many threads.
  void unpack(int threads, int64_t first, int64_t count, char* to) const {
    const int64_t start = first / PANEL, panels = (first + count + PANEL - 1) / PANEL - start;
    Team::run(
        threads, [] {},
        [&](Team& team, int thread) {
          for (int64_t panel = start + panels * thread / team.size();
               panel < start + panels * (thread + 1) / team.size(); panel++)
            if (has_groups(format))
              visit_blocks(format,
                           [&](auto block) { unpack_blocks<decltype(block)>(panel, first, first + count, to); });
            else unpack_panel(panel, first, first + count, to);
        });
  }

 private:
  // A cache line of each output at a time, so that what is read and what is written stays in the first cache.
  void pack_panel(int64_t panel, const std::vector<const char*>& from, uint32_t* to) const {
    const int64_t bytes = row_bytes(), first = panel * PANEL;
    for (int64_t word = 0; word < words; word += LINE) {
      uint32_t lines[PANEL][LINE] = {};
      const int64_t filled = std::min(LINE * 4, bytes - word * 4), wanted = std::min(LINE, words - word);
      for (int64_t output = 0; filled > 0 && output < std::min(PANEL, outputs - first); output++)
        memcpy(lines[output], from[first + output] + word * 4, filled);
      for (int64_t at = 0; at < wanted; at++)
        for (int64_t output = 0; output < PANEL; output++)
          to[(word + at) * PANEL + output] = lines[output][at] ^ plus_128();
    }
  }
  // The outputs of a panel that are among some.
  void unpack_panel(int64_t index, int64_t first, int64_t end, char* to) const {
    const uint32_t* from = (const uint32_t*)panel(index);
    const int64_t bytes = row_bytes();
    const int64_t start = std::max(first, index * PANEL), stop = std::min(end, (index + 1) * PANEL);
    for (int64_t word = 0; word * 4 < bytes; word += LINE) {
      const int64_t filled = std::min(LINE * 4, bytes - word * 4);
      for (int64_t output = start; output < stop; output++) {
        uint32_t line[LINE];
        for (int64_t at = 0; at < (filled + 3) / 4; at++)
          line[at] = from[(word + at) * PANEL + output % PANEL] ^ plus_128();
        memcpy(to + (output - first) * bytes + word * 4, line, filled);
      }
    }
  }
  // The same of blocks, a group of each output at a time.
  template <class Block>
  void pack_blocks(int64_t panel, const std::vector<const char*>& from, char* to) const {
    memset(to, 0, panel_bytes);
    const int64_t first = panel * PANEL;
    for (int64_t group = 0; group < inputs / GROUP; group++)
      for (int64_t output = 0; output < std::min(PANEL, outputs - first); output++) {
        const auto* block = (const uint8_t*)from[first + output] + group / Block::GROUPS * Block::BYTES;
        Block::Layout::write(to, group, output, Block::read(block, group % Block::GROUPS));
      }
  }
  template <class Block>
  void unpack_blocks(int64_t index, int64_t first, int64_t end, char* to) const {
    const int64_t bytes = row_bytes();
    const int64_t start = std::max(first, index * PANEL), stop = std::min(end, (index + 1) * PANEL);
    memset(to + (start - first) * bytes, 0, (stop - start) * bytes);
    for (int64_t group = 0; group < inputs / GROUP; group++)
      for (int64_t output = start; output < stop; output++) {
        auto* block = (uint8_t*)to + (output - first) * bytes + group / Block::GROUPS * Block::BYTES;
        Block::write(block, group % Block::GROUPS, Block::Layout::read(panel(index), group, output % PANEL));
      }
  }
  static constexpr int64_t LINE = 16;  // words
  int64_t row_bytes() const { return row_bytes(format, inputs); }
  uint32_t plus_128() const { return format == Format::int8 ? 0x80808080 : 0; }
};

// Rows as products read them: some of a `Rows`.
struct RowsView {
  int64_t count, stride, chunks;
  const char* data;
  const float* units;
  const int32_t* starts;
  const int32_t* sums;

  const char* row(int64_t index) const { return data + index * stride; }
};

// Rows in the format of a weight. Those for int8 weights are rounded to eight bits, every chunk by its own largest
// number: 1 stands for its unit, and its sum starts with what takes off the 128 of the weights. So are those for weights
// with groups, of which sums of numbers are kept.
struct Rows {
  int64_t count = 0, stride = 0, chunks = 0;  // stride: in bytes; chunks: of an int8 row
  Buffer data, units, starts, sums;
  // of a chunk the sums of each 16 numbers, and behind them those of each 32
  static constexpr int64_t SIXTEENTHS = INT8_CHUNK * 4 / 16, CHUNK_SUMS = SIXTEENTHS * 3 / 2;
  typedef int8_t Bytes __attribute__((vector_size(WIDTH / 4)));
  typedef int16_t Shorts __attribute__((vector_size(WIDTH / 2)));

  // Of each four, the first and the third before the others.
  template <int... lane>
  static Shorts evens_first(Shorts a, std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(a, a, (lane % 4 == 1 ? lane + 1 : lane % 4 == 2 ? lane - 1 : lane)...);
  }

  void reserve(int64_t rows, int64_t inputs) {
    count = rows;
    stride = rounded_up(inputs, PANEL) * 4 + 64;  // rows a multiple of 4 KB apart would share lines of the first cache
    chunks = (inputs + INT8_CHUNK * 4 - 1) / (INT8_CHUNK * 4);
    data.reserve<char>(rounded_up(rows, Amx::ROWS) * stride);  // matrix instructions read whole blocks of them
    units.reserve<float>(rows * chunks), starts.reserve<int32_t>(rows * chunks);
    sums.reserve<int32_t>(rows * chunks * CHUNK_SUMS);
  }
  RowsView some(int64_t first, int64_t count) const {
    return {count,
            stride,
            chunks,
            data.as<char>() + first * stride,
            units.as<float>() + first * chunks,
            starts.as<int32_t>() + first * chunks,
            sums.as<int32_t>() + first * chunks * CHUNK_SUMS};
  }
  operator RowsView() const { return some(0, count); }

  void take(int64_t index, Format format, int64_t inputs, const float* from) {
    char* to = data.as<char>() + index * stride;
    const int64_t filled = inputs * row_word(format) / inputs_of_word(format);
    memset(to + filled, 0, stride - filled);
    if (format == Format::float32) {
      memcpy(to, from, inputs * 4);
    } else if (format == Format::bfloat16) {
      for (int64_t input = 0; input < inputs; input += LANES) {
        const Halves halves = rounded(load_some(from + input, inputs - input));
        if constexpr (row_word(Format::bfloat16) == 4) {
          memcpy(to + input * 2, &halves, sizeof halves);
        } else {
          store(to + input * 4, __builtin_convertvector(halves, Ints) << 16);
        }
      }
    } else {
      float* unit = units.as<float>() + index * chunks;
      int32_t* start = starts.as<int32_t>() + index * chunks;
      int32_t* parts = sums.as<int32_t>() + index * chunks * CHUNK_SUMS;
      for (int64_t first = 0; first < inputs; first += INT8_CHUNK * 4, unit++, start++, parts += CHUNK_SUMS) {
        const int64_t end = std::min(first + INT8_CHUNK * 4, inputs);
        Floats most{}, nothing{};
        for (int64_t input = first; input < end; input += LANES) {
          const Floats numbers = load_some(from + input, end - input);
          most = larger(magnitude(numbers), most), nothing += numbers - numbers;
        }
        *unit = largest(most) / 127 + sum(nothing);  // what is no number stays none
        const float inverse = *unit > 0 ? 1 / *unit : 0;
        Ints all{}, sixteen{};
        for (int64_t input = first; input < end; input += LANES) {
          const Ints whole = nearest(load_some(from + input, end - input) * inverse);
          if (row_word(format) == 4) {
            const Bytes bytes = __builtin_convertvector(whole, Bytes);
            memcpy(to + input, &bytes, sizeof bytes);
          } else {
            const Shorts shorts = __builtin_convertvector(whole, Shorts);
            const Shorts split = evens_first(shorts, std::make_integer_sequence<int, LANES>());
            memcpy(to + input * 2, &split, sizeof split);
          }
          all += whole;
          if (has_groups(format)) {
            sixteen += whole;
            if ((input + LANES) % 16 == 0) {
              const int64_t index = (input - first) / 16;
              parts[index] = sum(sixteen), sixteen = Ints{};
              if (index % 2) parts[SIXTEENTHS + index / 2] = parts[index - 1] + parts[index];
            }
          }
        }
        *start = -128 * sum(all);
      }
    }
  }
};

}  // namespace drafttree
