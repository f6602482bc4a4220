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
#include <vector>

#include "amx.h"
#include "memory.h"
#include "team.h"
#include "vectors.h"

namespace drafttree {

enum class Format { float32, bfloat16, int8 };

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
constexpr int64_t chunk_of(Format format) { return format == Format::int8 ? INT8_CHUNK : CHUNK; }
// Whether matrix instructions compute the products of a format.
constexpr bool uses_amx(Format format) { return HAS_AMX && format != Format::float32; }

inline int64_t inputs_of_word(Format format) {
  return format == Format::float32 ? 1 : format == Format::bfloat16 ? 2 : 4;
}
// Bytes of a row that one word of a weight is multiplied with. Where no instruction takes a word as it is, rows have
// what the instructions that there are take: of two bfloat16 two float32, of four bytes two pairs of 16 bits, the even
// ones and the odd ones. To make these of a word in every product would take as long as the product.
constexpr int64_t row_word(Format format) {
  if (uses_amx(format)) return 4;
  return (format == Format::bfloat16 && !HAS_BFLOAT16) || (format == Format::int8 && !HAS_BYTES) ? 8 : 4;
}
inline int64_t rounded_up(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

struct Panels {
  Format format = Format::float32;
  int64_t outputs = 0, inputs = 0, words = 0, count = 0;
  Buffer data, scales, biases;  // scales: of the outputs of an int8 weight, what 1 stands for; else and without: zeros

  int64_t panel_bytes() const { return words * PANEL * 4; }
  const char* panel(int64_t index) const { return data.as<char>() + index * panel_bytes(); }
  size_t bytes() const { return data.size() + scales.size() + biases.size(); }

  // Packs outputs, of each the numbers as they lie in memory, on so many threads. Scales and biases are left to be
  // filled in.
  static Panels pack(int threads, Format format, const std::vector<const char*>& outputs, int64_t inputs) {
    Panels made;
    made.format = format, made.outputs = outputs.size(), made.inputs = inputs;
    const int64_t per = inputs_of_word(format);
    made.words = rounded_up((inputs + per - 1) / per, uses_amx(format) ? Amx::WORDS : 1);
    made.count = (made.outputs + PANEL - 1) / PANEL;
    // a step calls lines one chunk ahead, also behind the end
    char* data = made.data.reserve<char>(made.count * made.panel_bytes() + CHUNK * PANEL * 4);
    for (Buffer* each : {&made.scales, &made.biases})
      memset(each->reserve<float>(made.count * PANEL), 0, made.count * PANEL * 4);
    Team::run(
        threads, [] {},
        [&](Team& team, int thread) {
          for (int64_t panel = made.count * thread / team.size(); panel < made.count * (thread + 1) / team.size();
               panel++)
            made.pack_panel(panel, outputs, (uint32_t*)(data + panel * made.panel_bytes()));
        });
    return made;
  }

  // The numbers of an output, those of an int8 weight times what 1 stands for.
  void read(int64_t output, float* to) const {
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
            unpack_panel(panel, first, first + count, to);
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
  static constexpr int64_t LINE = 16;  // words
  int64_t row_bytes() const { return inputs * 4 / inputs_of_word(format); }
  uint32_t plus_128() const { return format == Format::int8 ? 0x80808080 : 0; }
};

// Rows as products read them: some of a `Rows`.
struct RowsView {
  int64_t count, stride, chunks;
  const char* data;
  const float* units;
  const int32_t* starts;

  const char* row(int64_t index) const { return data + index * stride; }
};

// Rows in the format of a weight. Those for int8 weights are rounded to eight bits, every chunk by its own largest
// number: 1 stands for its unit, and its sum starts with what takes off the 128 of the weights.
struct Rows {
  int64_t count = 0, stride = 0, chunks = 0;  // stride: in bytes; chunks: of an int8 row
  Buffer data, units, starts;
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
  }
  RowsView some(int64_t first, int64_t count) const {
    return {count,
            stride,
            chunks,
            data.as<char>() + first * stride,
            units.as<float>() + first * chunks,
            starts.as<int32_t>() + first * chunks};
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
      for (int64_t first = 0; first < inputs; first += INT8_CHUNK * 4, unit++, start++) {
        const int64_t end = std::min(first + INT8_CHUNK * 4, inputs);
        Floats most{}, nothing{};
        for (int64_t input = first; input < end; input += LANES) {
          const Floats numbers = load_some(from + input, end - input);
          most = larger(magnitude(numbers), most), nothing += numbers - numbers;
        }
        *unit = largest(most) / 127 + sum(nothing);  // what is no number stays none
        const float inverse = *unit > 0 ? 1 / *unit : 0;
        Ints all{};
        for (int64_t input = first; input < end; input += LANES) {
          const Ints whole = nearest(load_some(from + input, end - input) * inverse);
          if constexpr (row_word(Format::int8) == 4) {
            const Bytes bytes = __builtin_convertvector(whole, Bytes);
            memcpy(to + input, &bytes, sizeof bytes);
          } else {
            const Shorts shorts = __builtin_convertvector(whole, Shorts);
            const Shorts split = evens_first(shorts, std::make_integer_sequence<int, LANES>());
            memcpy(to + input * 2, &split, sizeof split);
          }
          all += whole;
        }
        *start = -128 * sum(all);
      }
    }
  }
};

}  // namespace drafttree
