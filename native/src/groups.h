// Weights whose inputs have a scale by groups of 32, in four, five, six or eight bits a number: of files for llama.cpp, GPTQ, AWQ
// and MLX, and those that `quantize="int4"` makes.
//
//   [panel of 64 outputs][8 groups of 32 inputs: what their scales are multiplied with][group: scales][numbers]
//
// Numbers of four bits lie in steps of 64 words of 32 bits, a word for each output. A byte of a step holds a number of
// an even word of inputs in its lower half, and one of the odd word behind it in its upper half: one load feeds two
// words of products. Behind them are the fifth bits, a bit of each of the 8 words in a byte, or the fifth and the sixth
// ones, two bits of each of 4 words. Numbers of eight bits lie as those of other weights do, a word of four for each
// output.
//
// A number stands for scale * (number - zero) + min. All of that is kept as the file has it, so nothing is rounded
// anew, and what a file held can be read out again.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "vectors.h"

namespace drafttree {

constexpr int64_t GROUP = 32;        // inputs
constexpr int64_t OUTER_GROUPS = 8;  // that share an outer scale: 256 inputs, a block of llama.cpp
constexpr int64_t GROUP_PANEL = 64;  // outputs

INLINE float half_widened(uint16_t half) {
#if defined(__F16C__)
  return _cvtsh_ss(half);
#else
  // 2^112 times a float32 of the same bits in its place; whoever packs scales sees that they are finite
  const uint32_t bits = (uint32_t)(half & 0x7fff) << 13;
  float number;
  memcpy(&number, &bits, 4);
  return half & 0x8000 ? -number * 0x1p112f : number * 0x1p112f;
#endif
}
// As many float16 as there are lanes.
INLINE Floats halves_at(const char* from) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__F16C__)
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#else
  Floats out;
  for (int lane = 0; lane < LANES; lane++) {
    uint16_t half;
    memcpy(&half, from + lane * 2, 2);
    out[lane] = half_widened(half);
  }
  return out;
#endif
}
// As many bytes as there are lanes. (GCC 12 converts vectors of them number by number.)
INLINE Ints bytes_at(const char* from) {
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
  Ints out;
  for (int lane = 0; lane < LANES; lane++) out[lane] = (uint8_t)from[lane];
  return out;
#endif
}
INLINE Ints signed_bytes_at(const char* from) { return bytes_at(from) << 24 >> 24; }

// A group of one output: its numbers and whatever stands for its scales.
struct Group {
  uint8_t numbers[GROUP];
  uint16_t scale = 0, min = 0;  // float16; of all groups of a block where there are inner ones
  uint8_t inner[2] = {};        // scale and min of a group, or the scales of its halves; or its zero
};

// The scales of a panel's groups: where they lie, and what they are. HEAD: bytes before the numbers of a group; OUTER:
// before 8 groups; SPANS: parts of a group that have a scale of their own.

// A float16; numbers count from a constant.
template <int ZERO>
struct HalfScales {
  static constexpr int64_t HEAD = GROUP_PANEL * 2, OUTER = 0;
  static constexpr int SPANS = 1;
  static constexpr bool HAS_MINS = false, HAS_ZEROS = false;
  static constexpr int zero = ZERO;

  INLINE Floats scale(const char* head, const char*, int64_t output, int) { return halves_at(head + output * 2); }
  static float scale(const Group& group, int) { return half_widened(group.scale); }
  static void write(char* head, char*, int64_t output, const Group& group) {
    memcpy(head + output * 2, &group.scale, 2);
  }
  static void read(const char* head, const char*, int64_t output, Group& group) {
    memcpy(&group.scale, head + output * 2, 2);
  }
};

// A float16, and another one that is added.
struct HalfScalesAndMins {
  static constexpr int64_t HEAD = GROUP_PANEL * 4, OUTER = 0;
  static constexpr int SPANS = 1;
  static constexpr bool HAS_MINS = true, HAS_ZEROS = false;
  static constexpr int zero = 0;

  INLINE Floats scale(const char* head, const char*, int64_t output, int) { return halves_at(head + output * 2); }
  INLINE Floats min(const char* head, const char*, int64_t output) {
    return halves_at(head + (GROUP_PANEL + output) * 2);
  }
  static float scale(const Group& group, int) { return half_widened(group.scale); }
  static float min(const Group& group) { return half_widened(group.min); }
  static void write(char* head, char*, int64_t output, const Group& group) {
    memcpy(head + output * 2, &group.scale, 2), memcpy(head + (GROUP_PANEL + output) * 2, &group.min, 2);
  }
  static void read(const char* head, const char*, int64_t output, Group& group) {
    memcpy(&group.scale, head + output * 2, 2), memcpy(&group.min, head + (GROUP_PANEL + output) * 2, 2);
  }
};

// A float16, and a whole number that numbers count from.
struct HalfScalesAndZeros {
  static constexpr int64_t HEAD = GROUP_PANEL * 3, OUTER = 0;
  static constexpr int SPANS = 1;
  static constexpr bool HAS_MINS = false, HAS_ZEROS = true;
  static constexpr int zero = 0;

  INLINE Floats scale(const char* head, const char*, int64_t output, int) { return halves_at(head + output * 2); }
  INLINE Ints zeros(const char* head, int64_t output) {
    return bytes_at(head + GROUP_PANEL * 2 + output);
  }
  static float scale(const Group& group, int) { return half_widened(group.scale); }
  static void write(char* head, char*, int64_t output, const Group& group) {
    memcpy(head + output * 2, &group.scale, 2), head[GROUP_PANEL * 2 + output] = group.inner[0];
  }
  static void read(const char* head, const char*, int64_t output, Group& group) {
    memcpy(&group.scale, head + output * 2, 2), group.inner[0] = head[GROUP_PANEL * 2 + output];
  }
};

// Whole numbers of six bits for scale and min of a group, times a float16 each for 8 groups; the min is taken off.
struct TwoLevels {
  static constexpr int64_t HEAD = GROUP_PANEL * 2, OUTER = GROUP_PANEL * 4;
  static constexpr int SPANS = 1;
  static constexpr bool HAS_MINS = true, HAS_ZEROS = false;
  static constexpr int zero = 0;

  INLINE Floats scale(const char* head, const char* outer, int64_t output, int) {
    return halves_at(outer + output * 2) * __builtin_convertvector(bytes_at(head + output), Floats);
  }
  INLINE Floats min(const char* head, const char* outer, int64_t output) {
    const Ints inner = bytes_at(head + GROUP_PANEL + output);
    return -halves_at(outer + (GROUP_PANEL + output) * 2) * __builtin_convertvector(inner, Floats);
  }
  static float scale(const Group& group, int) { return half_widened(group.scale) * group.inner[0]; }
  static float min(const Group& group) { return -half_widened(group.min) * group.inner[1]; }
  static void write(char* head, char* outer, int64_t output, const Group& group) {
    head[output] = group.inner[0], head[GROUP_PANEL + output] = group.inner[1];
    memcpy(outer + output * 2, &group.scale, 2), memcpy(outer + (GROUP_PANEL + output) * 2, &group.min, 2);
  }
  static void read(const char* head, const char* outer, int64_t output, Group& group) {
    group.inner[0] = head[output], group.inner[1] = head[GROUP_PANEL + output];
    memcpy(&group.scale, outer + output * 2, 2), memcpy(&group.min, outer + (GROUP_PANEL + output) * 2, 2);
  }
};

// Whole numbers from -128 to 127 for the scales of both halves of a group, times a float16 for 8 groups.
struct ScalesOfHalves {
  static constexpr int64_t HEAD = GROUP_PANEL * 2, OUTER = GROUP_PANEL * 2;
  static constexpr int SPANS = 2;
  static constexpr bool HAS_MINS = false, HAS_ZEROS = false;
  static constexpr int zero = 32;

  INLINE Floats scale(const char* head, const char* outer, int64_t output, int span) {
    const Ints inner = signed_bytes_at(head + span * GROUP_PANEL + output);
    return halves_at(outer + output * 2) * __builtin_convertvector(inner, Floats);
  }
  static float scale(const Group& group, int span) {
    return half_widened(group.scale) * (int8_t)group.inner[span];
  }
  static void write(char* head, char* outer, int64_t output, const Group& group) {
    head[output] = group.inner[0], head[GROUP_PANEL + output] = group.inner[1];
    memcpy(outer + output * 2, &group.scale, 2);
  }
  static void read(const char* head, const char* outer, int64_t output, Group& group) {
    group.inner[0] = head[output], group.inner[1] = head[GROUP_PANEL + output];
    memcpy(&group.scale, outer + output * 2, 2);
  }
};

// Where the groups of a panel lie.
template <class ScalesOfGroups, int BITS_OF_NUMBERS>
struct GroupLayout {
  typedef ScalesOfGroups Scales;
  static constexpr int BITS = BITS_OF_NUMBERS;
  static constexpr int64_t BYTES = Scales::HEAD + GROUP_PANEL * GROUP * BITS / 8;  // of a group
  static constexpr int64_t UPPER = Scales::HEAD + GROUP_PANEL * GROUP / 2;          // where bits above the fourth lie
  static constexpr int UPPER_BITS = BITS - 4, UPPER_WORDS = BITS == 6 ? 4 : 8;  // of a byte there

  static constexpr int64_t panel_bytes(int64_t groups) {
    return groups * BYTES + (groups + OUTER_GROUPS - 1) / OUTER_GROUPS * Scales::OUTER;
  }
  static constexpr int64_t outer(int64_t group) {
    return group / OUTER_GROUPS * (Scales::OUTER + OUTER_GROUPS * BYTES);
  }
  static constexpr int64_t at(int64_t group) {
    return outer(group) + Scales::OUTER + group % OUTER_GROUPS * BYTES;
  }

  static void write(char* panel, int64_t group, int64_t output, const Group& from) {
    char* head = panel + at(group);
    Scales::write(head, panel + outer(group), output, from);
    uint8_t* numbers = (uint8_t*)head + Scales::HEAD + output * 4;
    for (int64_t input = 0; input < GROUP; input++) {
      const int64_t word = input / 4;
      const uint8_t number = from.numbers[input];
      if constexpr (BITS == 8) {
        numbers[word * GROUP_PANEL * 4 + input % 4] = number;
      } else {
        numbers[word / 2 * GROUP_PANEL * 4 + input % 4] |= (number & 15) << word % 2 * 4;
        if constexpr (BITS > 4) *upper_byte(head, output, input) |= number >> 4 << word % UPPER_WORDS * UPPER_BITS;
      }
    }
  }
  // What the numbers of a group stand for.
  static void values(const Group& group, float* to) {
    for (int64_t input = 0; input < GROUP; input++) {
      int number = group.numbers[input] - Scales::zero;
      if constexpr (Scales::HAS_ZEROS) number -= group.inner[0];
      to[input] = Scales::scale(group, input * Scales::SPANS / GROUP) * number;
      if constexpr (Scales::HAS_MINS) to[input] += Scales::min(group);
    }
  }
  static Group read(const char* panel, int64_t group, int64_t output) {
    Group found;
    const char* head = panel + at(group);
    Scales::read(head, panel + outer(group), output, found);
    const uint8_t* numbers = (const uint8_t*)head + Scales::HEAD + output * 4;
    for (int64_t input = 0; input < GROUP; input++) {
      const int64_t word = input / 4;
      uint8_t& number = found.numbers[input];
      if constexpr (BITS == 8) {
        number = numbers[word * GROUP_PANEL * 4 + input % 4];
      } else {
        number = numbers[word / 2 * GROUP_PANEL * 4 + input % 4] >> word % 2 * 4 & 15;
        if constexpr (BITS > 4)
          number |= (*upper_byte(head, output, input) >> word % UPPER_WORDS * UPPER_BITS & ((1 << UPPER_BITS) - 1)) << 4;
      }
    }
    return found;
  }

 private:
  // The byte with the bits above the fourth of an input.
  template <class Byte>
  static auto* upper_byte(Byte* head, int64_t output, int64_t input) {
    typedef std::conditional_t<std::is_const_v<Byte>, const uint8_t, uint8_t> Bits;
    return (Bits*)head + UPPER + input / 4 / UPPER_WORDS * GROUP_PANEL * 4 + output * 4 + input % 4;
  }
};

}  // namespace drafttree
