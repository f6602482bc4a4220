// A weight packed once for products that run at the speed of memory, and the rows it is multiplied with.
//
//   [panel of 64 outputs][word of 32 bits along the inputs][64 outputs]
//
// A word is one float32, two bfloat16 or four int8. A vector of words holds as many outputs, so an output is summed in
// one lane, over the inputs in order: nothing is ever added across lanes, and nothing about a sum depends on how many
// rows there are. Outputs and inputs are padded with zeros to whole panels and words.
#pragma once
#include <algorithm>
#include <cmath>

#include "memory.h"
#include "team.h"
#include "vectors.h"

namespace drafttree {

enum class Format { float32, bfloat16, int8 };

constexpr int64_t PANEL = 64;
// Words of a panel that are summed by themselves before they join the sum: one running sum over all inputs had 3 to 7
// times the error of MKL's. 16 KB: they stay in the first cache while all rows pass over them.
constexpr int64_t CHUNK = 64;

inline int64_t inputs_of_word(Format format) {
  return format == Format::float32 ? 1 : format == Format::bfloat16 ? 2 : 4;
}
inline int64_t rounded_up(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

struct Panels {
  Format format = Format::float32;
  int64_t outputs = 0, inputs = 0, words = 0, count = 0;
  Buffer data, scales, biases;  // scales: of the outputs of an int8 weight, what 1 stands for; biases: zeros if none

  int64_t panel_bytes() const { return words * PANEL * 4; }
  const char* panel(int64_t index) const { return data.as<char>() + index * panel_bytes(); }
  size_t bytes() const { return data.size() + scales.size() + biases.size(); }

  // Packs `[outputs, inputs]` numbers on so many threads. `at(output, input)` gives them, on any thread.
  template <class At>
  static Panels pack(int threads, Format format, int64_t outputs, int64_t inputs, At at) {
    Panels made;
    made.format = format, made.outputs = outputs, made.inputs = inputs;
    const int64_t per = inputs_of_word(format);
    made.words = (inputs + per - 1) / per, made.count = (outputs + PANEL - 1) / PANEL;
    // a step calls lines one chunk ahead, also behind the end
    char* data = made.data.reserve<char>(made.count * made.panel_bytes() + CHUNK * PANEL * 4);
    float* scales = made.scales.reserve<float>(made.count * PANEL);
    memset(made.biases.reserve<float>(made.count * PANEL), 0, made.count * PANEL * 4);
    Team::run(
        threads, [] {},
        [&](Team& team, int thread) {
          for (int64_t output = made.count * thread / team.size() * PANEL;
               output < made.count * (thread + 1) / team.size() * PANEL; output++) {
            const bool exists = output < outputs;
            float most = 0;
            if (exists && format == Format::int8)
              for (int64_t input = 0; input < inputs; input++) most = std::max(most, std::fabs(at(output, input)));
            scales[output] = most / 127;
            char* lane = data + output / PANEL * made.panel_bytes() + output % PANEL * 4;
            for (int64_t input = 0; input < made.words * per; input++) {
              char* place = lane + input / per * PANEL * 4;
              const float number = exists && input < inputs ? at(output, input) : 0;
              if (format == Format::float32) ((float*)place)[0] = number;
              else if (format == Format::bfloat16) ((uint16_t*)place)[input % 2] = rounded(number);
              else ((uint8_t*)place)[input % 4] = 128 + (int)std::nearbyint(most > 0 ? number / scales[output] : 0);
            }
          }
        });
    return made;
  }
};

// Rows in the format of a weight. Those for int8 weights are rounded to eight bits, each by its own largest number.
// An int8 weight is stored plus 128, since the instruction multiplies unsigned by signed bytes; `starts` takes that
// off.
struct Rows {
  int64_t count = 0, stride = 0;  // stride: in bytes
  Buffer data, units, starts;
  typedef int8_t Bytes __attribute__((vector_size(WIDTH / 4)));

  void reserve(int64_t rows, int64_t inputs) {
    count = rows;
    stride = rounded_up(inputs, PANEL) * 4 + 64;  // rows a multiple of 4 KB apart would share lines of the first cache
    data.reserve<char>(rows * stride), units.reserve<float>(rows), starts.reserve<int32_t>(rows);
  }
  const char* row(int64_t index) const { return data.as<char>() + index * stride; }

  void take(int64_t index, Format format, int64_t inputs, const float* from) {
    char* to = data.as<char>() + index * stride;
    memset(to + inputs * 4 / inputs_of_word(format), 0, stride - inputs * 4 / inputs_of_word(format));
    if (format == Format::float32) {
      memcpy(to, from, inputs * 4);
    } else if (format == Format::bfloat16) {
      for (int64_t input = 0; input < inputs; input += LANES) {
        const Halves halves = rounded(load_some(from + input, inputs - input));
        memcpy(to + input * 2, &halves, sizeof halves);
      }
    } else {
      Floats most{};
      for (int64_t input = 0; input < inputs; input += LANES)
        most = larger(magnitude(load_some(from + input, inputs - input)), most);
      const float unit = largest(most) / 127, inverse = unit > 0 ? 1 / unit : 0;
      Ints all{};
      for (int64_t input = 0; input < inputs; input += LANES) {
        const Ints whole = nearest(load_some(from + input, inputs - input) * inverse);
        const Bytes bytes = __builtin_convertvector(whole, Bytes);
        memcpy(to + input, &bytes, sizeof bytes);
        all += whole;
      }
      units.as<float>()[index] = unit, starts.as<int32_t>()[index] = -128 * sum(all);
    }
  }
};

}  // namespace drafttree
